"""Bounded decompression of request bodies.

Rule: at most ``MAX_INFLATED`` bytes are produced, whatever the input (so a gzip bomb costs no more
than an honest body), and at most ``MAX_COMPRESSED`` are read.
"""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple
from zlib import decompressobj

from ext_proc.requests.parsing.budget import MAX_COMPRESSED, MAX_INFLATED
from ext_proc.requests.parsing.errors import BadRequest

MAX_RATIO: Final = 1032
"""Bytes that one byte of DEFLATE data may inflate to: 258 bytes take two bits at least."""

UNKNOWN: Final = 2**62
"""Stands for a length that nothing bounds."""

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
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
    body: bytes | memoryview, *, complete: bool, place: str, announced: int | None = None
) -> Inflated:
    """Decompress gzip or zlib data (``deflate`` of HTTP and gRPC is zlib).

    Args:
        body: The data, or its first part.
        complete: Whether it is all of the data.
        place: Name of the data in error messages.
        announced: Length of all of the data, if it is not complete; ``None`` = unknown.

    Raises:
        BadRequest: The data is neither, is damaged, or ends early although ``complete``.
    """
    source = memoryview(body)
    inflater = decompressobj(_GZIP_OR_ZLIB)
    try:
        content = inflater.decompress(source[:MAX_COMPRESSED], MAX_INFLATED)
    except zlib.error as error:
        raise BadRequest(f"{place} is not valid gzip or deflate data: {error}") from None
    bounded = len(source) > MAX_COMPRESSED or len(content) >= MAX_INFLATED
    if complete and not inflater.eof and not bounded:
        raise BadRequest(f"{place} ends in the middle of its compressed data; send all of it")
    # What follows the end of the data counts, as readers may go on with a second member.
    left = len(inflater.unused_data) + len(inflater.unconsumed_tail)
    left += max(0, len(source) - MAX_COMPRESSED)
    if not complete:
        if announced is None:
            return Inflated(content, inflater.eof, UNKNOWN)
        left += max(0, announced - len(source))
    return Inflated(content, inflater.eof, len(content) + left * MAX_RATIO)
