"""Bounded decompression of request bodies.

Rule: at most ``MAX_INFLATED`` bytes are produced, whatever the input (so a gzip bomb costs no more
than an honest body), and at most ``MAX_COMPRESSED`` are read.
"""

from __future__ import annotations

import zlib
from zlib import decompressobj

from ext_proc.requests.parsing.budget import MAX_COMPRESSED, MAX_INFLATED
from ext_proc.requests.parsing.errors import BadRequest

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_SUPPORTED = frozenset({"gzip", "deflate"})


def is_supported(coding: str) -> bool:
    """Return whether ``coding`` (an HTTP or gRPC encoding name) can be decompressed."""
    return coding in _SUPPORTED


def inflate(body: bytes | memoryview, *, complete: bool, place: str) -> tuple[bytes, bool]:
    """Decompress gzip or zlib data (``deflate`` of HTTP and gRPC is zlib).

    Returns:
        The first part of the content, and whether it is the whole content.

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
    return content, inflater.eof
