"""The fleet to go back to when clients refuse a revision.

Laws:

1. Routes, weights and settings are those of the last fleet that clients accepted.
2. A drain is never undone by a refusal, and neither is an endpoint's coming or going - unless the
   refusal was about endpoints, or the accepted fleet could not stand with it.
3. What comes back keeps the rules of a fleet.
4. A replica that pickers never lost comes back as the one that it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xds_server.fleet.diff import diff
from xds_server.fleet.revision import FileState, FleetState, Revision, following, next_incarnations
from xds_server.fleet.rules.fleet import problems

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec


def fallen_back(good: Fleet, refused: Fleet, *, membership: bool) -> Fleet:
    """Return what should be in force after ``refused`` was refused.

    Args:
        good: The last fleet that was accepted.
        refused: The fleet that was not.
        membership: Endpoints that came or went stay so, where the fleet stands with it.
    """
    drained = _with(good, refused, _drained)
    if membership:
        joined = _with(good, refused, _joined)
        if joined != refused and not problems(joined):
            return joined
    return good if problems(drained) else drained


def led_back(
    good: FleetState, here: FleetState, fleet: Fleet, author: str, reason: str, now: int
) -> FleetState:
    """Return the state that leads back after a refusal, as the revision after ``here``.

    Args:
        good: The last state that was accepted.
        here: The state in force; it or one before it was refused.
        fleet: What should be in force, see ``fallen_back``.
        author: Who leads back.
        reason: Why.
        now: Unix milliseconds.
    """
    # The file was seen, but what it says is not what edits are compared with.
    file = here.file and good.file and FileState(here.file.text_hash, good.file.fleet)
    number = here.revision.number + 1
    revision = Revision(number, now, author, reason, diff(here.fleet, fleet))
    state = following(here, fleet, revision, file)
    before = next_incarnations(good.fleet, good.incarnations, fleet, number, 0)
    returned = {e: one for e, one in before.items() if good.incarnations.get(e) == one}
    return FleetState(state.revision, state.fleet, {**state.incarnations, **returned}, state.file)


def _with(good: Fleet, refused: Fleet, step: Callable[[PoolSpec, PoolSpec], PoolSpec]) -> Fleet:
    now = {pool.name: pool for pool in refused.pools}
    pools = tuple(step(pool, now[pool.name]) if pool.name in now else pool for pool in good.pools)
    return good.model_copy(update={"pools": pools})


def _drained(good: PoolSpec, refused: PoolSpec) -> PoolSpec:
    now = {endpoint.id: endpoint for endpoint in refused.endpoints}
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
    # A variant that comes back brings its replicas along.
    endpoints += [e for i, e in before.items() if i not in here and good.variant_of(e) not in kept]
    return _with_endpoints(good, endpoints)


def _with_endpoints(pool: PoolSpec, endpoints: list[EndpointSpec]) -> PoolSpec:
    return pool.model_copy(update={"endpoints": tuple(endpoints)})
