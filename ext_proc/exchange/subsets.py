"""Subset hints: the endpoints to which a request is restricted.

Source: Gateway API Inference Extension, endpoint picker protocol 1.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_SUBSET: Final = 10_000
"""Maximum entries read of a subset hint; the rest could only enlarge the choice."""


def entries_of(texts: Iterable[str]) -> frozenset[str]:
    """Return the entries, ``ip:port`` or ``ip``, of comma-separated texts, blanks trimmed."""
    entries = (entry.strip() for text in texts for entry in text.split(","))
    return frozenset([entry for entry in entries if entry][:MAX_SUBSET])


def both(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """Return what two hints allow together; ``None`` = no limit.

    An entry without a port allows every port of its host.
    """
    if one is None or other is None:
        return other if one is None else one
    return frozenset(
        entry for entry in one | other if _allowed(entry, one) and _allowed(entry, other)
    )


def _allowed(entry: str, hint: frozenset[str]) -> bool:
    return entry in hint or _host(entry) in hint


def _host(entry: str) -> str:
    """Return the entry's host; an IPv6 address keeps its brackets."""
    host, colon, _ = entry.rpartition(":")
    return host if colon and (":" not in host or host.endswith("]")) else entry
