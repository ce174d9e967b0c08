"""Fuzz target of the workers: the bytes that one reads from another, in two pieces."""

from __future__ import annotations

from contextlib import suppress

from ext_proc.workers.decode import Decoder
from ext_proc.workers.records import GarbledError, framed


def one_stream(data: bytes) -> None:
    """Read ``data`` as a stream and as one frame; the result is messages or ``GarbledError``."""
    half = len(data) // 2
    for stream in (data, framed(data)):
        decoder = Decoder()
        with suppress(GarbledError):
            for piece in (stream[:half], stream[half:]):
                list(decoder.feed(piece))
