"""What Envoys are told of placement, for requests that no picker sees. Pure.

Rules:

1. Of a variant only models that are not everywhere are listed: those that one replica is known to
   have READY and another is known not to have. What all or none of them have needs no choice.
2. A listed model is listed for the replicas that have it READY, and for those of which nothing is
   known. Replicas that drain are not looked at.
3. A variant with a version of its own looks at this version, others at any. A replica that has a
   higher one READY too would answer by that over gRPC: it counts as one without the model.
4. A replica that a model is about to leave counts as one without it.
5. At most ``MAX_LISTED`` models of replicas are listed for one pool, in the order of their names.
   For the rest a replica is chosen as if nothing were known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from xds_server.applications.traffic.placements import READY

if TYPE_CHECKING:
    from xds_server.applications.traffic.placements import ReplicaModels
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
