"""Bounded decompression of request bodies.

Rules:

1. At most ``MAX_INFLATED`` bytes are produced, whatever the input (so a gzip bomb costs no more
   than an honest body), and at most ``MAX_COMPRESSED`` are read.
2. Triton's HTTP server overlooks what is wrong with compressed data (``data_compressor.h``): what
   was decompressed before damage, an early end, a wrong checksum or other data is its content.
"""

from __future__ import annotations

import zlib
from contextlib import suppress
from typing import Any, Final, NamedTuple
from zlib import decompressobj

from ext_proc.requests.parsing.budget import MAX_COMPRESSED, MAX_INFLATED
from ext_proc.requests.parsing.errors import Malformed

MAX_RATIO: Final = 1032
"""Bytes that one byte of DEFLATE data may inflate to: 258 bytes take two bits at least."""

UNKNOWN: Final = 2**62
"""Stands for a length that nothing bounds."""

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_STEP_BYTES: Final = 512
_SUPPORTED = frozenset({"gzip", "deflate"})


def is_supported(coding: str) -> bool:
    """Return whether ``coding`` (an HTTP or gRPC encoding name) can be decompressed."""
    return coding in _SUPPORTED


class Inflated(NamedTuple):
    """What was read of compressed data."""

    content: bytes
    """Its first part."""
    whole: bool
    """The first part is all of it."""
    most: int
    """Bytes that whoever inflates all of it gets at most; ``UNKNOWN`` if its length is unknown."""


def inflate(
    body: bytes | memoryview, *, complete: bool, place: str | None, announced: int | None = None
) -> Inflated:
    """Decompress gzip or zlib data (``deflate`` of HTTP and gRPC is zlib).

    Args:
        body: The data, or its first part.
        complete: Whether it is all of the data.
        place: Name of the data in error messages; ``None`` = no error is raised (rule 2).
        announced: Length of all of the data, if it is not complete; ``None`` = unknown.

    Raises:
        Malformed: The data is neither, is damaged, or ends early although ``complete``.
    """
    source = memoryview(body)
    inflater = decompressobj(_GZIP_OR_ZLIB)
    try:
        content = inflater.decompress(source[:MAX_COMPRESSED], MAX_INFLATED)
    except zlib.error as error:
        if place is not None:
            raise Malformed(f"{place} is not valid gzip or deflate data: {error}") from None
        content, found = _before_damage(source)
        return Inflated(content, found, len(content) if found else UNKNOWN)
    bounded = len(source) > MAX_COMPRESSED or len(content) >= MAX_INFLATED
    ends_early = complete and not inflater.eof and not bounded
    if ends_early and place is not None:
        raise Malformed(f"{place} ends in the middle of its compressed data; send all of it")
    most = _most(inflater, source, len(content), announced, complete=complete)
    return Inflated(content, inflater.eof or ends_early, most)


def _most(
    inflater: Any, source: memoryview, made: int, announced: int | None, *, complete: bool
) -> int:
    """Return how many bytes whoever inflates all of the data gets at most."""
    # What follows the end of the data counts, as readers may go on with a second member.
    left = len(inflater.unused_data) + len(inflater.unconsumed_tail)
    left += max(0, len(source) - MAX_COMPRESSED)
    if not complete:
        if announced is None:
            return UNKNOWN
        left += max(0, announced - len(source))
    return made + left * MAX_RATIO


def _before_damage(source: memoryview) -> tuple[bytes, bool]:
    """Return what damaged data contains before the damage, and whether that was found."""
    inflater = decompressobj(_GZIP_OR_ZLIB)
    content = bytearray()
    for start in range(0, min(len(source), MAX_COMPRESSED), _STEP_BYTES):
        before = inflater.copy()
        step = source[start : start + _STEP_BYTES]
        try:
            content += inflater.decompress(step, MAX_INFLATED - len(content))
        except zlib.error:
            with suppress(zlib.error):
                for at in range(len(step)):
                    content += before.decompress(step[at : at + 1], MAX_INFLATED)
            return bytes(content), len(content) < MAX_INFLATED
        if len(content) >= MAX_INFLATED:
            break
    return bytes(content), False
