"""A replica proposed for a new sequence that another picker of the group may place."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.routing.values.request import SequenceKey


class Proposal(NamedTuple):
    """A lease that is asked for."""

    pool: str
    sequence: SequenceKey
    endpoint: EndpointKey
    variant: str
    idle_s: float
    """How long the lease lasts, seconds."""
    instead: EndpointKey | None = None
    """Replica of the lease to be replaced; ``None`` = none is known."""
    addresses: tuple[str, ...] = ()
    """The replica and its fallbacks; not sent."""


class PlacedAs(StrEnum):
    """What became of a proposal."""

    AS_PROPOSED = "proposed"
    """The lease is granted."""
    EARLIER = "earlier"
    """The sequence has a lease already."""
    NOWHERE = "nowhere"
    """None may be granted now."""
