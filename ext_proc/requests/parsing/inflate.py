"""Bounded decompression of request bodies.

Rule: at most ``MAX_OUTPUT_BYTES`` are produced, whatever the input (so a gzip bomb costs no more
than an honest body), and at most ``MAX_INPUT_BYTES`` are read.
"""

from __future__ import annotations

import zlib
from typing import Final

from ext_proc.requests.parsing.errors import BadRequest

MAX_INPUT_BYTES: Final = 2**20
MAX_OUTPUT_BYTES: Final = 2**20

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
    inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        content = inflater.decompress(source[:MAX_INPUT_BYTES], MAX_OUTPUT_BYTES)
    except zlib.error as error:
        raise BadRequest(f"{place} is not valid gzip or deflate data: {error}") from None
    bounded = len(source) > MAX_INPUT_BYTES or len(content) >= MAX_OUTPUT_BYTES
    if complete and not inflater.eof and not bounded:
        raise BadRequest(f"{place} ends in the middle of its compressed data; send all of it")
    return content, inflater.eof
