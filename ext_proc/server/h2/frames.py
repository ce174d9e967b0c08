"""gRPC's length-prefixed messages: extraction from a stream's bytes, and framing. Pure.

Source: "Length-Prefixed-Message", "Timeout" and "Status-Message" in gRPC's
``doc/PROTOCOL-HTTP2.md``.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

PREFIX: Final = 5
"""Bytes before a message: the compression flag and the length."""


MAX_DETAILS: Final = 500
"""Characters of a status message: callers accept about 8 KiB of headers."""

_PLAIN: Final = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""Characters left unescaped in a status message, besides letters and digits."""
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class CompressedError(ValueError):
    """A message is compressed; this server does not support compression."""


class TooLargeError(ValueError):
    """A message, or all incomplete messages together, exceed the allowed size."""


def framed(message: bytes) -> bytes:
    """Return a message with its prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def timeout_s(text: bytes) -> float | None:
    """Return the seconds of a ``grpc-timeout`` header, ``None`` if it is malformed."""
    found = _TIMEOUT.fullmatch(text)
    return None if found is None else int(found[1]) * _UNITS_S[found[2]]


def status_headers(code: int, details: str) -> tuple[tuple[bytes, bytes], ...]:
    """Return the trailers of a call: its status and, unless it is OK, the text."""
    if not code:
        return ((b"grpc-status", b"0"),)
    text = quote(details[:MAX_DETAILS], safe=_PLAIN, errors="replace")
    return ((b"grpc-status", str(code).encode()), (b"grpc-message", text.encode()))


class Deframer:
    """Splits the bytes of one direction of one stream into messages.

    Args:
        limit: Maximum bytes of a message.
    """

    __slots__ = ("_limit", "_tail", "completed")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.completed = 0
        """Number of times at which a message that had been incomplete was completed."""
        self._tail: bytearray | None = None

    @property
    def waiting(self) -> int:
        """Bytes of an incomplete message."""
        return 0 if self._tail is None else len(self._tail)

    def drop(self) -> None:
        """Forget the incomplete message."""
        self._tail = None

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
        if begin:
            self.completed += 1
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
