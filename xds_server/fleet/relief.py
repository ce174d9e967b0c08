"""Relief: changes that are made even while the store cannot be written. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xds_server.fleet.model.fleet import Fleet, PoolSpec

ACCEPTED = "acknowledged by"
"""How the outcome of a revision begins that no client refused."""


def is_relief(before: Fleet | None, after: Fleet) -> bool:
    """Return whether two fleets differ only in drains and in the share of rejected requests.

    These take load from replicas or give it back. They add no replica and no name, so that nothing
    refers to a revision that a restart may lose.
    """
    return before is not None and _settings(before) == _settings(after)


def _settings(fleet: Fleet) -> Fleet:
    return fleet.model_copy(update={"pools": tuple(map(_calm, fleet.pools))})


def _calm(pool: PoolSpec) -> PoolSpec:
    endpoints = tuple(
        each.model_copy(update={"draining": False}) if each.draining else each
        for each in pool.endpoints
    )
    return pool.model_copy(update={"endpoints": endpoints, "drop_overload": 0.0})
