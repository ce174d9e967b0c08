"""gRPC's length-prefixed messages: cut out of a stream's bytes, and made. Pure.

Source: "Length-Prefixed-Message" in gRPC's ``doc/PROTOCOL-HTTP2.md``.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = 5
"""Bytes before a message: whether it is compressed, and its length."""


class CompressedError(ValueError):
    """A message is compressed, which is not offered here."""


class TooLargeError(ValueError):
    """A message, or all that wait to become whole, are larger than allowed."""


def framed(message: bytes) -> bytes:
    """Return a message with its prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Deframer:
    """Cuts the messages of one direction of one stream out of its bytes.

    Args:
        limit: Most bytes of a message.
    """

    __slots__ = ("_limit", "_tail")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tail: bytearray | None = None

    @property
    def waiting(self) -> int:
        """Bytes of a message that is not whole yet."""
        return 0 if self._tail is None else len(self._tail)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are whole now.

        What ``data`` has beyond them is ``waiting``. After an error nothing more may be fed.

        Raises:
            CompressedError: See there.
            TooLargeError: By its prefix a message is longer than the limit; it is not kept.
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
        """Return the length of a message and its prefix, which is there."""
        if data[begin]:
            raise CompressedError("compressed messages are not taken: send them as they are")
        size = int.from_bytes(data[begin + 1 : begin + PREFIX], "big")
        if size > self._limit:
            raise TooLargeError(f"a message of {size} bytes: at most {self._limit} are taken")
        return PREFIX + size
