"""The placement keeper: tells Envoys which replica has which model, for when no picker answers.

What is listed (``placed_in``):

1. Of a variant only models that are not everywhere are listed: those that one replica is known to
   have READY and another is known not to have. What all or none of them have needs no choice.
2. A listed model is listed for the replicas that have it READY, and for those of which nothing is
   known. Replicas that drain are not looked at.
3. A variant with a version of its own looks at this version, others at any. A replica that has a
   higher one READY too would answer by that over gRPC: it counts as one without the model.
4. A replica that a model is about to leave counts as one without it.
5. At most ``MAX_LISTED`` models of replicas are listed for one pool, in the order of their names.
   For the rest a replica is chosen as if nothing were known.

When it is published:

6. Every ``EVERY_S`` seconds the keeper derives from pickers' reports what is to be listed, and
   publishes it if it differs from what was published last. That makes no revision: it is observed
   state.
7. It looks only if a report, a picker's leaving or the fleet has changed something, and at least
   every ``SOMETIMES_S``, as reports become too old.
8. It waits while a publication runs: placement never overtakes an operator's change.
9. A failure is logged and tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog

from xds_server.applications.traffic.placements import READY

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.applications.traffic.placements import PlacementBook, ReplicaModels
    from xds_server.control.fleet_control import Control
    from xds_server.fleet.members.members import Placed
    from xds_server.fleet.model.fleet import Fleet, PoolSpec

_States: TypeAlias = tuple[Mapping[str, bool | None], bool | None]

MAX_LISTED: Final = 8192


def placed_in(
    fleet: Fleet,
    replicas: Mapping[str, ReplicaModels],
    leaving: Collection[tuple[str, str]] = frozenset(),
) -> Placed:
    """Return which models to list for which replicas.

    Args:
        fleet: The fleet in force.
        replicas: What each replica has, by endpoint id.
        leaving: Models that leave replicas: endpoint id and model.
    """
    if not replicas:
        return ()
    found = (
        (pool.name, _of_pool(pool, replicas, leaving))
        for pool in fleet.pools
        if pool.chooses_models
    )
    return tuple((name, listed) for name, listed in found if listed)


def _of_pool(
    pool: PoolSpec, replicas: Mapping[str, ReplicaModels], leaving: Collection[tuple[str, str]]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    by_variant: dict[str, list[str]] = {}
    for each in pool.endpoints:
        if not each.draining:
            by_variant.setdefault(pool.variant_of(each), []).append(each.id)
    listed: dict[str, list[str]] = {}
    left = MAX_LISTED
    for variant in pool.variants:
        states = {
            name: _states(replicas.get(name), variant.model_version)
            for name in by_variant.get(variant.name, ())
        }
        for name, model in leaving:
            if name in states:
                known, other = states[name]
                states[name] = {**known, model: False}, other
        models = pool.match.models or {model for found, _ in states.values() for model in found}
        for model in sorted(models):
            here = _holders(states, model)
            if len(here) > left:
                return _frozen(listed)
            left -= len(here)
            for name in here:
                listed.setdefault(name, []).append(model)
    return _frozen(listed)


def _frozen(listed: Mapping[str, list[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((name, tuple(models)) for name, models in sorted(listed.items()))


def _states(known: ReplicaModels | None, version: str | None) -> _States:
    """Return what a replica has READY, by model, and the same of models that it does not name."""
    if known is None:
        return {}, None
    found: dict[str, bool | None] = {}
    answers = {} if version is None else known.answers()
    for (model, of), each in known.models.items():
        if version is not None and (of not in {version, ""} or answers.get(model, of) != of):
            found.setdefault(model, False)
        elif each.state == READY:
            found[model] = True
        elif found.get(model) is not True:
            found[model] = False if each.state else None
    return found, False if known.whole else None


def _holders(states: Mapping[str, _States], model: str) -> list[str]:
    """Return the replicas for which a model is listed; none if it is not (rule 1)."""
    has = {name: found.get(model, other) for name, (found, other) in states.items()}
    if True not in has.values() or False not in has.values():
        return []
    return [name for name, each in has.items() if each is not False]


EVERY_S: Final = 2.0
SOMETIMES_S: Final = 30.0

_log = structlog.get_logger(__name__)


class PlacementKeeper:
    """Publishes what pickers report of placement; see the module's rules.

    Args:
        control: The fleet in force.
        book: What pickers report.
        clock: Monotonic seconds.
        leaving: Returns the models that leave replicas: endpoint id and model.
    """

    def __init__(
        self,
        control: Control,
        book: PlacementBook,
        clock: Callable[[], float],
        leaving: Callable[[], Collection[tuple[str, str]]] = frozenset,
    ) -> None:
        self._control = control
        self._book = book
        self._clock = clock
        self._leaving = leaving
        self._published: Placed = ()
        self._seen: tuple[int, Fleet, Collection[tuple[str, str]]] | None = None
        """The book's changes, the fleet and what leaves replicas, as they were looked at last."""
        self._looked = 0.0

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - rule 9
                _log.exception("placement_not_told")

    async def look(self) -> None:
        """Look once, and publish what has changed."""
        if not self._control.revision:
            return
        changes, fleet, now = self._book.changes, self._control.fleet, self._clock()
        leaving = self._leaving()
        if self._seen is not None and now - self._looked < SOMETIMES_S:
            known, looked_at, left = self._seen
            if known == changes and looked_at is fleet and left == leaving:
                return
        placed = await asyncio.to_thread(placed_in, fleet, self._book.last(), leaving)
        if placed != self._published:
            if not await self._control.publish_placed(placed):
                return  # and looks again
            self._published = placed
        self._seen, self._looked = (changes, fleet, leaving), now
