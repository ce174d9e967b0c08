"""HTTP/2 frames made and read by hand, so that a peer can send what a library refuses to send.

Nothing here checks what it is given. Header blocks are written without a table and without Huffman
codes; they are read by ``hpack``.

Source: RFC 9113 (frames), RFC 7541 (header blocks).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
"""Types of frames."""
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
"""Flags of frames."""
NO_ERROR, INTERNAL_ERROR, REFUSED, CANCEL = 0, 2, 7, 8
"""Error codes."""
INITIAL_WINDOW = 4
"""Setting: the window of each stream."""
LARGEST = 16_384
"""Payload of a frame, bytes, at most."""


class Frame(NamedTuple):
    """One frame as it came."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def makes_sense(self) -> bool:
        """Whether a client's peer may get it; what follows a stray byte does not."""
        of_connection = self.kind in {SETTINGS, PING, GOAWAY}
        return (
            self.kind <= CONTINUATION
            and len(self.payload) <= LARGEST
            and (self.stream == 0 if of_connection else self.stream % 2 == 1 or self.kind == WINDOW)
        )

    @property
    def content(self) -> bytes:
        """The payload without padding and priority."""
        start, end = 0, len(self.payload)
        if self.flags & PADDED and self.kind in {DATA, HEADERS}:
            start, end = 1, end - self.payload[0]
        if self.flags & WITH_PRIORITY and self.kind == HEADERS:
            start += 5
        return self.payload[start:end]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def padded(stream: int, data: bytes, flags: int) -> bytes:
    """Return a DATA frame with seven bytes of padding."""
    return frame(DATA, flags | PADDED, stream, b"\7" + data + bytes(7))


def settings(**values: int) -> bytes:
    """Return a SETTINGS frame; the only name is ``window``."""
    return frame(
        SETTINGS, 0, 0, b"".join(struct.pack(">HI", INITIAL_WINDOW, v) for v in values.values())
    )


def window(stream: int, size: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return frame(WINDOW, 0, stream, struct.pack(">I", size))


def reset(stream: int, code: int) -> bytes:
    """Return a RST_STREAM frame."""
    return frame(RESET, 0, stream, struct.pack(">I", code))


def header_block(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return a header block of literals."""
    made = bytearray()
    for pair in headers:
        made.append(0)
        for text in pair:
            _text(made, text.encode("latin1"))
    return bytes(made)


def header_frames(
    stream: int, headers: Iterable[tuple[str, str]], flags: int = 0, *, split: bool = False
) -> bytes:
    """Return a HEADERS frame; ``split`` = with its second half in a CONTINUATION."""
    block = header_block(headers)
    if not split:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    middle = len(block) // 2
    return frame(HEADERS, flags, stream, block[:middle]) + frame(
        CONTINUATION, END_HEADERS, stream, block[middle:]
    )


def _text(made: bytearray, text: bytes) -> None:
    """Append a string literal: its length with a prefix of seven bits, then itself."""
    length = len(text)
    if length < 127:
        made.append(length)
    else:
        made.append(127)
        length -= 127
        while length >= 128:
            made.append(length % 128 + 128)
            length //= 128
        made.append(length)
    made += text


class Framed:
    """Takes a connection's bytes apart."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def feed(self, data: bytes) -> Iterable[Frame]:
        """Yield the frames that are complete with these bytes."""
        kept = self._kept
        kept += data
        at = 0
        while len(kept) - at >= 9:
            length = int.from_bytes(kept[at : at + 3], "big")
            if len(kept) - at < 9 + length:
                break
            kind, flags, stream = struct.unpack_from(">BBI", kept, at + 3)
            payload = bytes(kept[at + 9 : at + 9 + length])
            at += 9 + length
            yield Frame(kind, flags, stream & 0x7FFFFFFF, payload)
        del kept[:at]

    @property
    def rest(self) -> int:
        """Number of bytes that make no whole frame yet."""
        return len(self._kept)
