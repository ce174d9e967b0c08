"""What a change would leave of each variant that it touches. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec

    Usable = Callable[[str, EndpointSpec], bool]
    """Whether a replica of a pool may get requests."""

MAX_VARIANTS: Final = 200
"""Most variants that are listed."""


class Remaining(NamedTuple):
    """A variant before and after a change."""

    pool: str
    variant: str
    weight: int
    weight_before: int
    replicas: int
    """Number of replicas after the change."""
    usable: int
    """Number of those that may get requests."""
    usable_before: int
    capacity: float
    """Sum of the usable replicas' ``capacity`` after the change."""
    capacity_before: float


def remaining(before: Fleet | None, after: Fleet, usable: Usable) -> list[Remaining]:
    """Return the variants of the pools that differ, at most ``MAX_VARIANTS``.

    Args:
        before: The fleet in force; ``None`` = there is none.
        after: The fleet after the change.
        usable: Whether a replica may get requests, apart from drains.
    """
    old = {} if before is None else {pool.name: pool for pool in before.pools}
    new = {pool.name: pool for pool in after.pools}
    found: list[Remaining] = []
    for name in dict.fromkeys((*new, *old)):
        was, now = old.get(name), new.get(name)
        if was is not now and was != now:
            found += _variants(name, was, now, usable)
        if len(found) >= MAX_VARIANTS:
            break
    return found[:MAX_VARIANTS]


def _variants(
    pool: str, was: PoolSpec | None, now: PoolSpec | None, usable: Usable
) -> Iterator[Remaining]:
    old, new = _counted(was, usable), _counted(now, usable)
    for variant in dict.fromkeys((*new, *old)):
        weight, replicas, fit, capacity = new.get(variant, _NONE)
        weight_before, _, fit_before, capacity_before = old.get(variant, _NONE)
        yield Remaining(
            pool,
            variant,
            weight,
            weight_before,
            replicas,
            fit,
            fit_before,
            capacity,
            capacity_before,
        )


_NONE: Final = (0, 0, 0, 0.0)


def _counted(pool: PoolSpec | None, usable: Usable) -> dict[str, tuple[int, int, int, float]]:
    """Return weight, replicas, usable ones and their capacity by variant."""
    if pool is None:
        return {}
    found = {each.name: (each.weight, 0, 0, 0.0) for each in pool.variants}
    for endpoint in pool.endpoints:
        name = pool.variant_of(endpoint)
        weight, replicas, fit, capacity = found.get(name, _NONE)
        if not endpoint.draining and usable(pool.name, endpoint):
            fit, capacity = fit + 1, capacity + endpoint.capacity
        found[name] = (weight, replicas + 1, fit, capacity)
    return found
