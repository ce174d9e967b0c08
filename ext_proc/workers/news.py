"""Messages between workers besides the router's events. Pure.

They carry what the worker that leads found at replicas, what others ask of it, and what members of
a group ask each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ext_proc.routing.health.conditions import Conditions
    from ext_proc.routing.health.placement import Placement
    from ext_proc.routing.state.leases import Lease, LeaseKey
    from ext_proc.routing.values.listing import Listing
    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.routing.values.proposal import PlacedAs, Proposal


class SnapshotEnd(NamedTuple):
    """The snapshot at the beginning of a connection is complete."""


class Hello(NamedTuple):
    """Who sends on a connection, at its beginning and again while it lasts."""

    member: str
    """Id of the picker, or of its worker."""
    at: float
    """When it is sent, by the sender's monotonic clock, seconds."""
    changes: int = 0
    """Number of the latest change of the members that it knows."""
    view: str = ""
    """Digest of the counts of all members that it knows (``group.owners``)."""


class OtherVersion(NamedTuple):
    """The sender's records are of another version, so that nothing else can be read."""

    version: int


class Listed(NamedTuple):
    """The members of a group that place new sequences, as the control server lists them."""

    number: int = 0
    """A newer list has a greater one; 0 = there is no list yet."""
    life: int = 0
    """Of lists with one number, the newer has the greater."""
    members: tuple[str, ...] = ()
    """Ids, sorted."""


class HeldLease(NamedTuple):
    """The lease of a new sequence, which is not used before more than half of a list hold it."""

    key: LeaseKey
    lease: Lease
    stamp: int
    """Of two such leases that with the greater stamp counts (``group.owners``)."""
    instead: EndpointKey | None = None
    """Replica of the lease that it replaces; ``None`` = none."""


class OwnerAsk(NamedTuple):
    """A member asks another for the lease of a sequence, on the connection that it reads."""

    number: int
    proposal: Proposal
    view: str = ""
    """Digest of what the asking member knows; empty where the group has no list."""


class OwnerAnswer(NamedTuple):
    """The answer, after the lease if there is one."""

    number: int
    placed: PlacedAs


class Probed(NamedTuple):
    """Result of a readiness probe of a replica for a pool."""

    pool: str
    endpoint: EndpointKey
    ready: bool
    why: str = ""
    """What the replica did where it is not ready, as a clause without its subject."""

    def take(self, conditions: Conditions) -> None:
        """Apply the result to the conditions."""
        conditions.probed(self.pool, self.endpoint, ready=self.ready, why=self.why)


class Looked(NamedTuple):
    """Which models a replica has."""

    endpoint: EndpointKey
    listing: Listing | None
    """``None`` = the replica is gone."""

    def take(self, placement: Placement) -> bool:
        """Apply the result to the placement; return whether it differs from what was known."""
        if self.listing is None:
            return placement.forget(self.endpoint)
        return placement.take(self.endpoint, self.listing)


class LookWanted(NamedTuple):
    """The worker that leads should ask a replica which models it has."""

    endpoint: EndpointKey
