"""Messages between workers besides the router's events. Pure.

They carry the probe results of the worker that leads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ext_proc.routing.health.conditions import Conditions
    from ext_proc.routing.values.pool import EndpointKey


class SnapshotEnd(NamedTuple):
    """The snapshot at the beginning of a connection is complete."""


class Probed(NamedTuple):
    """Result of a readiness probe of a replica for a pool."""

    pool: str
    endpoint: EndpointKey
    ready: bool

    def take(self, conditions: Conditions) -> None:
        """Apply the result to the conditions."""
        conditions.probed(self.pool, self.endpoint, ready=self.ready)


class Indexed(NamedTuple):
    """Result of reading a replica's repository index for a pool."""

    pool: str
    endpoint: EndpointKey
    why: str | None
    """The fault in the pool's models, ``None`` = no fault."""

    def take(self, conditions: Conditions) -> None:
        """Apply the result to the conditions."""
        conditions.indexed(self.pool, self.endpoint, self.why)
