"""What pickers get first from a control server that was restarted: at once, before Envoys answer.

Without it a picker that begins with this server has nothing, and one that had its pools before
hears of no drain, until the slowest Envoy has answered. Pure.

Rules:

1. After a completed change the stage is the fleet in force: all Envoys have had it.
2. After an unfinished one Envoys may have any of the fleets since the last completed change. Pools,
   variants and replicas that are part of all of them are used as the newest fleet says.
3. Others are kept for what they have begun: replicas as draining, variants without a draw. So a
   sequence stays on its replica, and no picker sends anything new where an Envoy cannot follow.
4. Where this leaves a variant without a usable replica, or a pool without a weight, it is as in the
   newest fleet: an Envoy that lacks the replica chooses one by itself.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from xds_server.fleet.model.fleet import Match
from xds_server.fleet.view import View
from xds_server.protocol.publication import Stage
from xds_server.protocol.snapshot import Snapshot
from xds_server.snapshots.build import picker_contents
from xds_server.snapshots.stages import URGENT, draws_of, host_of, marked, widened, without_draw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xds_server.fleet.model.fleet import Fleet, PoolSpec
    from xds_server.snapshots.build import Memo


def restart_stage(past: Sequence[Fleet], new: View, memo: Memo | None = None) -> Stage:
    """Return the stage.

    Args:
        past: The fleets before the newest that clients may still have, oldest first.
        new: The newest state.
        memo: Cache of built resources.
    """
    fleet = restart_fleet(past, new.fleet)
    view = View(fleet, new.incarnations, new.sick, new.seed)
    pools = Snapshot.of(picker_contents(view, memo))
    return Stage(URGENT, "picker", marked(pools, new), urgent=True)


def restart_fleet(past: Sequence[Fleet], new: Fleet) -> Fleet:
    """Return the fleet of the stage; ``new`` itself if there are no fleets before it."""
    if not past:
        return new
    wide = draws_of(reduce(lambda later, older: widened(older, later), reversed(past), new), new)
    histories = [{pool.name: pool for pool in fleet.pools} for fleet in (*past, new)]
    pools = []
    for pool in wide.pools:
        known = [history[pool.name] for history in histories if pool.name in history]
        kept = _restart_pool(pool, known)
        if len(known) < len(histories):
            kept = kept.model_copy(update={"match": Match(), "default": False})
        pools.append(kept)
    return wide.model_copy(update={"pools": tuple(pools)})


def _restart_pool(pool: PoolSpec, known: Sequence[PoolSpec]) -> PoolSpec:
    """Return the widened ``pool`` with only that in use which each of ``known`` has."""
    names = set.intersection(*({variant.name for variant in each.variants} for each in known))
    variants = tuple(v if v.name in names else without_draw(v) for v in pool.variants)
    if not any(variant.weight for variant in variants):
        variants = pool.variants
    hosts = set.intersection(*({host_of(each, e) for e in each.endpoints} for each in known))
    draining = {endpoint.id for endpoint in known[-1].endpoints if endpoint.draining}
    shared = [e for e in pool.endpoints if host_of(pool, e) in hosts]
    usable = {pool.variant_of(e) for e in shared if e.id not in draining}
    endpoints = tuple(
        endpoint.model_copy(update={"draining": True})
        if host_of(pool, endpoint) not in hosts and pool.variant_of(endpoint) in usable
        else endpoint
        for endpoint in pool.endpoints
    )
    return pool.model_copy(update={"variants": variants, "endpoints": endpoints})
