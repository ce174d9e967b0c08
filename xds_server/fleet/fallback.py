"""Fallback: the fleet to restore after clients have rejected a revision.

Rules:

1. Routes, weights and settings are those of the last fleet that clients accepted.
2. A fallback never undoes a drain. It does not undo the addition or removal of endpoints, or load
   to shed, either, unless the rejected resources were endpoints; endpoints also not if the accepted
   fleet would break a rule with them.
3. The restored fleet satisfies the rules of a fleet.
4. A replica that never left the pickers keeps its incarnation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from xds_server.fleet.diff import diff
from xds_server.fleet.revision import FileState, Revision, following, next_incarnations
from xds_server.fleet.rules.fleet import problems

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec
    from xds_server.fleet.revision import FleetState


def fallback_fleet(good: Fleet, refused: Fleet, *, membership: bool) -> Fleet:
    """Return the fleet to restore after ``refused`` was rejected.

    Args:
        good: The last fleet that was accepted.
        refused: The fleet that was rejected.
        membership: Keep the addition and removal of endpoints, if the result breaks no rule.
    """
    if membership:
        good = _with(good, refused, _shedding)
    drained = _with(good, refused, _drained)
    if membership:
        joined = _with(good, refused, _joined)
        if joined != refused and not problems(joined):
            return joined
    return good if problems(drained) else drained


def fallback_state(
    good: FleetState, here: FleetState, fleet: Fleet, author: str, reason: str, now: int
) -> FleetState:
    """Return the state to restore after a rejection, as the revision after ``here``.

    Args:
        good: The last state that was accepted.
        here: The state in force; it or one before it was rejected.
        fleet: The fleet to restore, see ``fallback_fleet``.
        author: Author of the revision.
        reason: Reason of the revision.
        now: Unix milliseconds.
    """
    # The file counts as read, but later edits are compared with the last accepted file.
    file = here.file and good.file and FileState(here.file.text_hash, good.file.fleet)
    number = here.revision.number + 1
    revision = Revision(number, now, author, reason, diff(here.fleet, fleet))
    state = following(here, fleet, revision, file)
    before = next_incarnations(good.fleet, good.incarnations, fleet, number, 0)
    returned = {e: one for e, one in before.items() if good.incarnations.get(e) == one}
    return replace(state, incarnations={**state.incarnations, **returned})


def _with(good: Fleet, refused: Fleet, step: Callable[[PoolSpec, PoolSpec], PoolSpec]) -> Fleet:
    now = {pool.name: pool for pool in refused.pools}
    pools = tuple(step(pool, now[pool.name]) if pool.name in now else pool for pool in good.pools)
    return good.model_copy(update={"pools": pools})


def _shedding(good: PoolSpec, refused: PoolSpec) -> PoolSpec:
    return good.model_copy(update={"drop_overload": refused.drop_overload})


def _drained(good: PoolSpec, refused: PoolSpec) -> PoolSpec:
    now = {endpoint.id: endpoint for endpoint in refused.endpoints}
    good = good.model_copy(update={"drained": refused.drained})
    return _with_endpoints(good, [_drain(e, now.get(e.id)) for e in good.endpoints])


def _drain(endpoint: EndpointSpec, now: EndpointSpec | None) -> EndpointSpec:
    if now is None or now.draining == endpoint.draining:
        return endpoint
    return endpoint.model_copy(update={"draining": now.draining})


def _joined(good: PoolSpec, refused: PoolSpec) -> PoolSpec:
    names = {variant.name for variant in good.variants}
    before = {endpoint.id: endpoint for endpoint in good.endpoints}
    endpoints = []
    for endpoint in refused.endpoints:
        variant = refused.variant_of(endpoint)
        if variant in names:
            same = good.variant_of(endpoint) == variant
            endpoints.append(endpoint if same else endpoint.model_copy(update={"variant": variant}))
        elif endpoint.id in before:
            endpoints.append(_drain(before[endpoint.id], endpoint))
    kept = {variant.name for variant in refused.variants}
    here = {endpoint.id for endpoint in refused.endpoints}
    # A variant that is restored keeps its replicas.
    endpoints += [e for i, e in before.items() if i not in here and good.variant_of(e) not in kept]
    return _with_endpoints(good, endpoints)


def _with_endpoints(pool: PoolSpec, endpoints: list[EndpointSpec]) -> PoolSpec:
    return pool.model_copy(update={"endpoints": tuple(endpoints)})
