"""gRPC's length-prefixed messages: extraction from a stream's bytes, and framing. Pure.

Source: "Length-Prefixed-Message" in gRPC's ``doc/PROTOCOL-HTTP2.md``.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = 5
"""Bytes before a message: the compression flag and the length."""


class CompressedError(ValueError):
    """A message is compressed; this server does not support compression."""


class TooLargeError(ValueError):
    """A message, or all incomplete messages together, exceed the allowed size."""


def framed(message: bytes) -> bytes:
    """Return a message with its prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Deframer:
    """Splits the bytes of one direction of one stream into messages.

    Args:
        limit: Maximum bytes of a message.
    """

    __slots__ = ("_limit", "_tail")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tail: bytearray | None = None

    @property
    def waiting(self) -> int:
        """Bytes of an incomplete message."""
        return 0 if self._tail is None else len(self._tail)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that ``data`` completes.

        Any remainder of ``data`` is kept as ``waiting``. After an error the deframer must not be
        used again.

        Raises:
            CompressedError: A message is compressed.
            TooLargeError: A prefix announces more bytes than the limit; the message is not kept.
        """
        tail = self._tail
        if tail is None:
            if len(data) >= PREFIX and self._size(data, 0) == len(data):
                return [data[PREFIX:]]
            tail = bytearray(data)
        else:
            tail += data
        found = []
        begin = 0
        while len(tail) - begin >= PREFIX:
            size = self._size(tail, begin)
            if len(tail) - begin < size:
                break
            found.append(bytes(memoryview(tail)[begin + PREFIX : begin + size]))
            begin += size
        del tail[:begin]
        self._tail = tail or None
        return found

    def _size(self, data: bytes | bytearray, begin: int) -> int:
        """Return the length of a message with its prefix; the prefix must be complete."""
        if data[begin]:
            raise CompressedError("compressed messages are not supported: send them uncompressed")
        size = int.from_bytes(data[begin + 1 : begin + PREFIX], "big")
        if size > self._limit:
            raise TooLargeError(f"message of {size} bytes exceeds the limit of {self._limit}")
        return PREFIX + size
