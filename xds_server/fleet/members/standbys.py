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
from typing import TYPE_CHECKING, Final

from xds_server.fleet.memo import ByIdentity, with_pools

if TYPE_CHECKING:
    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec

Promoted = Mapping[str, Mapping[str, int]]
"""Standbys that have come in by themselves: pool -> endpoint id -> Unix milliseconds."""

_FORMS: Final = 8
"""Published forms of one pool or fleet that are kept."""


def standing(fleet: Fleet, promoted: Promoted) -> Fleet:
    """Return a fleet whose standbys, but those that have come in, drain."""
    at = _with_standbys(fleet)
    if not at:
        return fleet
    key = tuple((n, frozenset(promoted.get(fleet.pools[n].name, ()))) for n in at)
    known = _forms(fleet)
    found = known.get(key)
    if found is None:
        if len(known) >= _FORMS:
            known.clear()
        pools = list(fleet.pools)
        for n, ids in key:
            pools[n] = _standing(pools[n], ids)
        found = known[key] = with_pools(fleet, pools)
    return found


def standbys_of(pool: PoolSpec) -> frozenset[str]:
    """Return the ids of a written pool's standbys."""
    return _standbys(pool)


def _standing(pool: PoolSpec, promoted: frozenset[str]) -> PoolSpec:
    known = _pool_forms(pool)
    found = known.get(promoted)
    if found is None:
        if len(known) >= _FORMS:
            known.clear()
        endpoints = tuple(
            _drained(each) if each.standby and each.id not in promoted else each
            for each in pool.endpoints
        )
        found = known[promoted] = pool.model_copy(update={"endpoints": endpoints})
    return found


@ByIdentity
def _with_standbys(fleet: Fleet) -> tuple[int, ...]:
    return tuple(position for position, pool in enumerate(fleet.pools) if _standbys(pool))


@ByIdentity
def _standbys(pool: PoolSpec) -> frozenset[str]:
    return frozenset(each.id for each in pool.endpoints if each.standby)


@ByIdentity
def _forms(_: Fleet) -> dict[tuple[tuple[int, frozenset[str]], ...], Fleet]:
    """Return the published forms of a fleet, by what has come in."""
    return {}


@ByIdentity
def _pool_forms(_: PoolSpec) -> dict[frozenset[str], PoolSpec]:
    """Return the published forms of a pool, by what has come in."""
    return {}


@ByIdentity
def _drained(endpoint: EndpointSpec) -> EndpointSpec:
    return endpoint.model_copy(update={"draining": True})
