"""Standbys: replicas that keep their models loaded and take no requests until they come in. Pure.

Rules:

1. A written replica with ``standby`` that has not come in is published as draining: new requests go
   elsewhere, and what it has ends by itself.
2. Which ones have come in by themselves is state beside the revision, with the time of each: its
   ramp begins then. Promotion by an operator is another revision, in which it is no standby.
3. Fleets and pools without standbys stay the same objects, and so do equal results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from xds_server.fleet.memo import ByIdentity, with_pools

if TYPE_CHECKING:
    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec

Promoted = Mapping[str, Mapping[str, int]]
"""Standbys that have come in by themselves: pool -> endpoint id -> Unix milliseconds."""


def standing(fleet: Fleet, promoted: Promoted) -> Fleet:
    """Return a fleet whose standbys, but those that have come in, drain."""
    at = _with_standbys(fleet)
    key = tuple((n, frozenset(promoted.get(fleet.pools[n].name, ()))) for n in at)
    return _standing(fleet, key) if key else fleet


@ByIdentity
def _standing(fleet: Fleet, promoted: tuple[tuple[int, frozenset[str]], ...]) -> Fleet:
    pools = list(fleet.pools)
    for n, ids in promoted:
        pools[n] = _standing_pool(pools[n], ids)
    return with_pools(fleet, pools)


@ByIdentity
def _standing_pool(pool: PoolSpec, promoted: frozenset[str]) -> PoolSpec:
    endpoints = tuple(
        _drained(each) if each.standby and each.id not in promoted else each
        for each in pool.endpoints
    )
    return pool.model_copy(update={"endpoints": endpoints})


@ByIdentity
def standbys_of(pool: PoolSpec) -> frozenset[str]:
    """Return the ids of a written pool's standbys."""
    return frozenset(each.id for each in pool.endpoints if each.standby)


@ByIdentity
def _with_standbys(fleet: Fleet) -> tuple[int, ...]:
    return tuple(position for position, pool in enumerate(fleet.pools) if standbys_of(pool))


@ByIdentity
def _drained(endpoint: EndpointSpec) -> EndpointSpec:
    return endpoint.model_copy(update={"draining": True})
