"""What workers tell each other beside the router's events. Pure.

What the one that leads found by asking replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ext_proc.routing.health.conditions import Conditions
    from ext_proc.routing.values.pool import EndpointKey


class Begun(NamedTuple):
    """All that stood at the beginning of a connection has been told."""


class Probed(NamedTuple):
    """A replica was asked whether it is ready for a pool."""

    pool: str
    endpoint: EndpointKey
    ready: bool

    def take(self, conditions: Conditions) -> None:
        """Fold it into the conditions."""
        conditions.probed(self.pool, self.endpoint, ready=self.ready)


class Indexed(NamedTuple):
    """A replica's repository index was read for a pool."""

    pool: str
    endpoint: EndpointKey
    why: str | None
    """What is wrong with the pool's models, ``None`` = nothing."""

    def take(self, conditions: Conditions) -> None:
        """Fold it into the conditions."""
        conditions.indexed(self.pool, self.endpoint, self.why)
