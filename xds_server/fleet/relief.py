"""Relief: changes that are made even while the store cannot be written. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xds_server.fleet.parts.successive import changed

if TYPE_CHECKING:
    from xds_server.fleet.model.fleet import Fleet, PoolSpec


def is_relief(before: Fleet | None, after: Fleet) -> bool:
    """Return whether two fleets differ only in drains and in the share of rejected requests.

    These take load from replicas or give it back. They add no replica and no name, so that nothing
    refers to a revision that a restart may lose.
    """
    if before is None:
        return False
    changes = changed(before, after)
    if changes is not None:
        return all(_calm(each.was) == _calm(each.now) for each in changes)
    return _settings(before) == _settings(after)


def _settings(fleet: Fleet) -> Fleet:
    return fleet.model_copy(update={"pools": tuple(map(_calm, fleet.pools))})


def _calm(pool: PoolSpec) -> PoolSpec:
    endpoints = tuple(
        each.model_copy(update={"draining": False, "standby": False})
        if each.draining or each.standby
        else each
        for each in pool.endpoints
    )
    return pool.model_copy(update={"endpoints": endpoints, "drained": (), "drop_overload": 0.0})
