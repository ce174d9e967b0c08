"""What clients are told of replicas beside the revision: models, and bounds. Pure.

What is listed for Envoys follows from pickers' reports (``applications.keepers.placed``), as do the
bounds of requests without a pick (``keepers.unpicked_keeper``); what leaves replicas, for
pickers, from operations (``applications.loading.leaving``). Fleets and pools
of which nothing is told stay the same objects, and so do equal results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from xds_server.fleet.memo import ByIdentity, with_pools
from xds_server.fleet.model.fleet import EndpointSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.fleet.model.fleet import Fleet, PoolSpec

_OfPool: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""Endpoint ids and the models listed for each."""
Placed: TypeAlias = tuple[tuple[str, _OfPool], ...]
"""Pools and what is listed for their replicas; a pool that is missing has nothing listed."""

Leaving: TypeAlias = _OfPool
"""Endpoint ids and the models that leave each, in all pools."""
Unpicked: TypeAlias = tuple[tuple[str, int], ...]
"""Clusters and the most requests without a pick to each; one that is missing has no such bound."""
_Tell: TypeAlias = "Callable[[EndpointSpec, tuple[str, ...]], EndpointSpec]"


def placing(fleet: Fleet, placed: Placed) -> Fleet:
    """Return a fleet whose replicas have these models listed."""
    return _told(fleet, placed, EndpointSpec.listing)


def leaving(fleet: Fleet, marks: Leaving) -> Fleet:
    """Return a fleet whose replicas these models leave."""
    by_pool: list[tuple[str, _OfPool]] = []
    for pool in fleet.pools if marks else ():
        ids = {each.id for each in pool.endpoints}
        here = tuple(each for each in marks if each[0] in ids)
        if here:
            by_pool.append((pool.name, here))
    return _told(fleet, tuple(by_pool), EndpointSpec.losing)


def bounding(fleet: Fleet, unpicked: Unpicked) -> Fleet:
    """Return a fleet whose requests without a pick are bounded so."""
    return _bounded(fleet, unpicked) if unpicked else fleet


@ByIdentity
def _bounded(fleet: Fleet, unpicked: Unpicked) -> Fleet:
    return fleet.bounding(unpicked)


def _told(fleet: Fleet, placed: Placed, tell: _Tell) -> Fleet:
    return _told_fleet(fleet, placed, tell) if placed else fleet


@ByIdentity
def _told_fleet(fleet: Fleet, placed: Placed, tell: _Tell) -> Fleet:
    here = dict(placed)
    pools = (_told_pool(p, here[p.name], tell) if p.name in here else p for p in fleet.pools)
    return with_pools(fleet, pools)


@ByIdentity
def _told_pool(pool: PoolSpec, listed: _OfPool, tell: _Tell) -> PoolSpec:
    models = dict(listed)
    endpoints = tuple(
        tell(each, models[each.id]) if each.id in models else each for each in pool.endpoints
    )
    return pool.model_copy(update={"endpoints": endpoints})
