"""Models of replicas, as Envoys are told of them: state beside the revision. Pure.

What is listed follows from pickers' reports (``xds_server.control.placed``). Fleets and pools of
which nothing is listed stay the same objects, and so do equal results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from xds_server.fleet.parts.identity import ByIdentity
from xds_server.fleet.parts.successive import with_changed

if TYPE_CHECKING:
    from xds_server.fleet.model.fleet import Fleet, PoolSpec

_OfPool: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""Endpoint ids and the models listed for each."""
Placed: TypeAlias = tuple[tuple[str, _OfPool], ...]
"""Pools and what is listed for their replicas; a pool that is missing has nothing listed."""

_FORMS: Final = 4
"""Published forms of one pool or fleet that are kept."""


def placing(fleet: Fleet, placed: Placed) -> Fleet:
    """Return a fleet whose replicas have these models listed."""
    if not placed:
        return fleet
    known = _forms(fleet)
    found = known.get(placed)
    if found is None:
        if len(known) >= _FORMS:
            known.clear()
        at = {pool.name: position for position, pool in enumerate(fleet.pools)}
        pools = {at[n]: _placing(fleet.pools[at[n]], each) for n, each in placed if n in at}
        found = known[placed] = with_changed(fleet, pools)
    return found


def _placing(pool: PoolSpec, listed: _OfPool) -> PoolSpec:
    known = _pool_forms(pool)
    found = known.get(listed)
    if found is None:
        if len(known) >= _FORMS:
            known.clear()
        models = dict(listed)
        endpoints = tuple(
            each.listing(models[each.id]) if each.id in models else each for each in pool.endpoints
        )
        found = known[listed] = pool.model_copy(update={"endpoints": endpoints})
    return found


@ByIdentity
def _forms(_: Fleet) -> dict[Placed, Fleet]:
    """Return the published forms of a fleet, by what is listed."""
    return {}


@ByIdentity
def _pool_forms(_: PoolSpec) -> dict[_OfPool, PoolSpec]:
    return {}
