"""Events of the prefix index: what replicas were sent, what their engines report, what was lost.

Applying the same events in the same order gives the same index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.cache.prefix_uses import UNKNOWN_TENANT

if TYPE_CHECKING:
    from ext_proc.routing.values.pool import EndpointKey

NAME_BITS: Final = 60
"""Engines' own hashes are cut to so many bits: among a million blocks two names collide with a
probability of one in two million, and such a name takes 32 bytes instead of 40 or more."""


class Inserted(NamedTuple):
    """An endpoint was sent a prompt."""

    endpoint: EndpointKey
    blocks: tuple[int, ...]
    at: float
    tenant: int = UNKNOWN_TENANT
    ticket: int = 0
    """The insert is provisional until this ticket's verdict; 0 = it is confirmed."""
    recomputed: bool = False
    """The engine computes all of it, also what it holds."""


class Purged(NamedTuple):
    """An endpoint's cache was lost."""

    endpoint: EndpointKey


class Reporting(NamedTuple):
    """An endpoint starts or stops reporting its cache."""

    endpoint: EndpointKey
    complete: bool | None
    """Whether its reports cover all that it holds; ``None`` = it stops reporting."""


class Stored(NamedTuple):
    """An engine of an endpoint stored these consecutive blocks."""

    endpoint: EndpointKey
    engine: int
    names: tuple[int, ...]
    """The engine's hashes, below ``2 ** NAME_BITS``."""
    blocks: tuple[int, ...]
    """Our hashes of the same blocks."""
    parent: int | None = None
    """Our hash of the preceding block; ``None`` if the blocks begin at the root."""


class Removed(NamedTuple):
    """An engine of an endpoint removed blocks."""

    endpoint: EndpointKey
    engine: int
    names: tuple[int, ...]


class Cleared(NamedTuple):
    """An engine of an endpoint cleared its cache, or its contents became unknown."""

    endpoint: EndpointKey
    engine: int


CacheEvent = Reporting | Stored | Removed | Cleared
IndexEvent = Inserted | Purged | CacheEvent
