"""The keeper of standbys: brings them in and sends them back, by what pickers report.

Rules:

1. It looks every ``EVERY_S`` seconds; which standbys are in is the rule of
   ``xds_server.applications.traffic.standbys``. What changes is published, logged, and stored.
2. A publication that fails is logged and tried again with the next look.
3. A restart begins with the stored ones, whose ramps do not begin anew. A store that cannot be
   written costs only this.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

import structlog

from xds_server.applications.traffic.replicas import UNKNOWN
from xds_server.applications.traffic.standbys import StandbyMachine, VariantSight
from xds_server.fleet.members.members import standbys_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from xds_server.applications.traffic.picker_runs import Key
    from xds_server.applications.traffic.replicas import State
    from xds_server.control.fleet_control import Control
    from xds_server.fleet.members.members import Promoted
    from xds_server.fleet.model.fleet import PoolSpec


EVERY_S: Final = 0.5

_log = structlog.get_logger(__name__)


class StandbyKeeper:
    """Brings standbys in and sends them back; see the module's rules.

    Args:
        control: The fleet in force.
        states: Returns the states of replicas, as pickers report them.
        store: Stores which standbys are in, as text.
        clock: Monotonic seconds.
        unix_ms: Wall clock, Unix milliseconds.
    """

    def __init__(
        self,
        control: Control,
        states: Callable[[], Mapping[Key, State]],
        store: Callable[[str], Awaitable[None]],
        clock: Callable[[], float],
        unix_ms: Callable[[], int],
    ) -> None:
        self._control = control
        self._states = states
        self._store = store
        self._clock = clock
        self._unix_ms = unix_ms
        self._machine: StandbyMachine | None = None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - rule 2
                _log.exception("standbys_not_published")
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """Look once, and publish what changes."""
        seen, came = self._seen(), self._control.promoted
        if not seen and not came:
            return
        states = self._states()
        if self._machine is None:
            self._machine = StandbyMachine(
                {
                    key: [each for each in sight.standbys if each in came.get(key[0], {})]
                    for key, sight in self._sights(seen, states).items()
                }
            )
        found = self._machine.step(self._clock(), self._sights(seen, states), known=bool(states))
        now: dict[str, dict[str, int]] = {}
        for (pool, _), ids in found.items():
            known = came.get(pool, {})
            for each in ids:
                now.setdefault(pool, {})[each] = known.get(each) or self._unix_ms()
        if now == came:
            return
        await self._control.publish_promoted(now)
        _log_changes(came, now)
        await self._store(dump(now))

    def _seen(self) -> list[PoolSpec]:
        return [pool for pool in self._control.written.pools if standbys_of(pool)]

    def _sights(
        self, pools: list[PoolSpec], states: Mapping[Key, State]
    ) -> dict[Key, VariantSight]:
        published = {pool.name: pool for pool in self._control.fleet.pools}
        found: dict[Key, VariantSight] = {}
        for pool in pools:
            drains = {each.id for each in pool.endpoints if each.draining} | set(pool.drained)
            replicas, usable = dict[str, int](), dict[str, int]()
            standbys, ill = dict[str, list[str]](), dict[str, set[str]]()
            for each in published[pool.name].endpoints:
                variant = pool.variant_of(each)
                left_alone = states.get((pool.name, each.id), UNKNOWN).left_alone
                if each.standby:
                    if each.id not in drains:
                        standbys.setdefault(variant, []).append(each.id)
                        if left_alone:
                            ill.setdefault(variant, set()).add(each.id)
                    continue
                replicas[variant] = replicas.get(variant, 0) + 1
                if not each.draining and not left_alone:
                    usable[variant] = usable.get(variant, 0) + 1
            spec = pool.standby
            for variant, ids in standbys.items():
                found[pool.name, variant] = VariantSight(
                    spec.below,
                    spec.until,
                    spec.hold,
                    replicas.get(variant, 0),
                    usable.get(variant, 0),
                    tuple(ids),
                    frozenset(ill.get(variant, ())),
                )
        return found


def _log_changes(before: Promoted, now: Promoted) -> None:
    was = {(pool, each) for pool, ids in before.items() for each in ids}
    here = {(pool, each) for pool, ids in now.items() for each in ids}
    for pool, each in sorted(here - was):
        _log.warning("standby_came_in", pool=pool, endpoint=each)
    for pool, each in sorted(was - here):
        _log.info("standby_went_back", pool=pool, endpoint=each)


def dump(promoted: Promoted) -> str:
    """Return which standbys are in, as text."""
    return json.dumps({pool: dict(ids) for pool, ids in promoted.items()})


def load(text: str) -> Promoted:
    """Return what ``dump`` wrote.

    Raises:
        ValueError: The text is something else.
    """
    found = json.loads(text)
    valid = isinstance(found, dict) and all(
        isinstance(ids, dict) and all(isinstance(at, int) for at in ids.values())
        for ids in found.values()
    )
    if not valid:
        raise ValueError("no standbys")
    return dict(found)
