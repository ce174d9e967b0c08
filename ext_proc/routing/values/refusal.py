"""Why no endpoint was chosen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RefusalKind(StrEnum):
    """Why nobody was chosen; the value is the machine-readable reason."""

    NO_ENDPOINTS = "no-endpoints"
    """503: no eligible endpoint at all."""
    SATURATED = "saturated"
    """429: all that are eligible are at their in-flight limit."""
    UNKNOWN_POOL = "unknown-pool"
    """404: no pool of that name."""
    UNKNOWN_MODEL = "unknown-model"
    """404: no pool serves that model in that form."""
    UNKNOWN_VERSION = "unknown-version"
    """404: the pool has no replica of that version."""
    BAD_REQUEST = "bad-request"
    """400: the body cannot be read, and only the body names the pool."""
    TOO_LARGE = "too-large"
    """413: the body is above the pool's bound."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nobody was chosen."""

    kind: RefusalKind
    message: str
    """One sentence for the caller."""
