"""Why a stream to another service ended, in a few words, from what gRPC says of it. Pure."""

from __future__ import annotations

import re
from typing import Final

MAX_CHARS: Final = 512
"""Most characters of another service's own words."""

_WORDS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), words)
    for pattern, words in (
        (r"CERTIFICATE_VERIFY_FAILED|is not in peer certificate", "not trusted"),
        (r"failed to connect.*: ([a-z][a-z ]{3,60})\W*$", "not reached: {}"),
        (r"resolution failed", "name not found"),
        (r"keepalive watchdog timeout|ping timeout", "silent"),
        (r"Socket closed|Connection reset|Broken pipe|GOAWAY", "connection closed"),
        (r"failed to connect|handshake", "not reached"),
    )
)
"""What gRPC writes, and what it means."""


def why_lost(status: str, details: str | None) -> str:
    """Return why a stream ended.

    Args:
        status: Name of the status, such as ``UNAVAILABLE``.
        details: Words of gRPC or of the other service.
    """
    said = details or ""
    if status in {"UNAVAILABLE", "INTERNAL", "UNKNOWN", "CANCELLED"}:
        for pattern, words in _WORDS:
            found = pattern.search(said)
            if found is not None:
                return words.format(*(each.lower() for each in found.groups()))
    return f"{status}: {said[:MAX_CHARS]}" if said else status
