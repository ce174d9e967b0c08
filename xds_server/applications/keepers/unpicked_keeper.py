"""The keeper of bounds: tells Envoys how many requests without a pick they may let go at once.

Rules:

1. Every ``EVERY_S`` seconds it derives the bounds from pickers' reports (``UnpickedBounds``),
   and publishes them if they differ from those published last. That makes no revision.
2. It waits while a publication runs. A failure is logged and tried again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from xds_server.fleet.view import clusters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from xds_server.applications.traffic.picker_runs import Key
    from xds_server.applications.traffic.replicas import State
    from xds_server.control.fleet_control import Control
    from xds_server.fleet.members.members import Unpicked
    from xds_server.fleet.model.fleet import Fleet, PoolSpec


EVERY_S: Final = 2.0

_log = structlog.get_logger(__name__)

_ROOM: Final = 8
"""Part of a sum that is told in addition."""
_MOST_ABOVE: Final = 1.25
"""Times a sum that its bound is at most."""


class UnpickedKeeper:
    """Publishes the bounds; see the module's rules.

    Args:
        control: The fleet in force.
        states: Returns the states of replicas, as pickers report them.
    """

    def __init__(self, control: Control, states: Callable[[], Mapping[Key, State]]) -> None:
        self._control = control
        self._states = states
        self._bounds = UnpickedBounds()
        self._published: Unpicked = ()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - rule 2
                _log.exception("bounds_not_told")

    async def look(self) -> None:
        """Look once, and publish what has changed."""
        if not self._control.revision:
            return
        bounds = self._bounds.look(self._control.fleet, self._states())
        if bounds != self._published and await self._control.publish_unpicked(bounds):
            self._published = bounds


class UnpickedBounds:
    """The bounds, with the limits reported last.

    Rules:

    1. A variant's bound is the sum of the limits that pickers keep for its replicas that do not
       drain. These have what pickers had let go as well, so in all at most twice their limits (rule
       4 apart), from each Envoy and over each protocol.
    2. A replica that no picker reports on keeps the limit that was reported last: the picker that
       kept it may have died. One of which no limit is known counts as much as the highest of the
       variant. Without any there is no bound but the pool's breakers.
    3. A replica's limits are of it as a whole, or of its models, which then count together.
    4. Limits that are learned move by one: a bound with 8 or more is told with an eighth more, and
       again once the sum is above it, or a quarter below.
    5. Where the pool has `max_connections_per_endpoint`, that bounds requests over HTTP: they wait
       in Envoy, and none is refused for another bound.
    """

    def __init__(self) -> None:
        self._limits: dict[Key, int] = {}
        self.told: Unpicked = ()
        """The bounds by cluster, as of the last look."""

    def look(self, fleet: Fleet, states: Mapping[Key, State]) -> Unpicked:
        """Return the bounds by cluster.

        Args:
            fleet: The fleet in force.
            states: The states of replicas on which pickers report.
        """
        known = self._limits
        limits: dict[Key, int] = {}
        for pool in fleet.pools:
            for each in pool.endpoints:
                key = (pool.name, each.id)
                state = states.get(key)
                if state is None:
                    found = known.get(key)
                else:
                    found = sum(limit.most for limit in state.limits) if state.limits else None
                if found is not None:
                    limits[key] = found
        self._limits = limits
        before = dict(self.told)
        self.told = tuple(
            (cluster, _damped(most, before.get(cluster)))
            for pool in fleet.pools
            for cluster, most in _of_pool(pool, limits)
        )
        return self.told


def _of_pool(pool: PoolSpec, limits: Mapping[Key, int]) -> Iterable[tuple[str, int]]:
    by_variant: dict[str, list[int | None]] = {}
    for each in pool.endpoints:
        if not each.draining:
            found = by_variant.setdefault(pool.variant_of(each), [])
            found.append(limits.get((pool.name, each.id)))
    waits = pool.circuit_breaker.max_connections_per_endpoint > 0
    for ref in clusters_of(pool):
        every = by_variant.get(ref.variant, [])
        highest = max((each for each in every if each is not None), default=None)
        if highest is not None and not (waits and ref.protocol == "http"):
            yield str(ref), sum(highest if each is None else each for each in every)


def _damped(most: int, told: int | None) -> int:
    if told is not None and most <= told <= most * _MOST_ABOVE:
        return told
    return most + most // _ROOM
