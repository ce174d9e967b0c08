"""Functions of successive fleets: the value for a fleet is made from the one for the fleet before.

A change touches few pools. Whatever all pools have a share in (a table, a set of resources, a
verdict) is therefore not made again but *stepped*: taken over but for the changed pools.

Rules:

1. A step is made only between fleets that differ in pools at the same positions and with the same
   names, at most ``MAX_CHANGED`` of them, and are equal in all other fields (``changed``).
2. A stepped value equals that of the whole function. It may be the very value of the fleet before,
   so what follows finds by identity that nothing has changed.
3. The fleets are held weakly. The last ``KEPT`` values are kept, and the comparisons of at most
   ``PAIRS`` pairs of fleets.
4. Any thread may call; two threads at once may both make a value, which is the same.
"""

from __future__ import annotations

import functools
import weakref
from itertools import compress, count
from operator import is_not
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec

KEPT: Final = 4
"""A plan has up to four fleets: the old and the new one, both together, and the pickers' own."""

MAX_CHANGED: Final = 64
"""Above it, making the whole value is not slower by much."""

PAIRS: Final = 32

_Value = TypeVar("_Value")


class Changed(NamedTuple):
    """A pool that differs between two fleets."""

    position: int
    """Its position in both."""
    was: PoolSpec
    now: PoolSpec


Changes: TypeAlias = tuple[Changed, ...]
"""All differences of two fleets, by position."""

_Positions: TypeAlias = tuple[int, ...]
_compared: dict[
    tuple[int, int], tuple[weakref.ref[Fleet], weakref.ref[Fleet], _Positions | None]
] = {}


def changed(old: Fleet, new: Fleet) -> Changes | None:
    """Return in which pools two fleets differ, compared by identity.

    ``None`` if they differ in anything else, in the names or order of their pools, or in more than
    ``MAX_CHANGED`` of them.
    """
    if old is new:
        return ()
    key = (id(old), id(new))
    known = _compared.get(key)
    if known is not None and known[0]() is old and known[1]() is new:
        positions = known[2]
    else:
        positions = _differing(old, new)
        if len(_compared) >= PAIRS:
            _compared.clear()
        _compared[key] = (weakref.ref(old), weakref.ref(new), positions)
    if positions is None:
        return None
    return tuple(Changed(at, old.pools[at], new.pools[at]) for at in positions)


def _differing(old: Fleet, new: Fleet) -> _Positions | None:
    was, now = old.pools, new.pools
    if len(was) != len(now) or not _same_but_pools(old.__dict__, new.__dict__):
        return None
    positions = tuple(compress(count(), map(is_not, was, now)))
    if len(positions) > MAX_CHANGED or any(was[at].name != now[at].name for at in positions):
        return None
    return positions


def _same_but_pools(old: dict[str, Any], new: dict[str, Any]) -> bool:
    return old.keys() == new.keys() and all(
        value is new[name] or value == new[name] for name, value in old.items() if name != "pools"
    )


def with_changed(fleet: Fleet, pools: dict[int, PoolSpec]) -> Fleet:
    """Return the fleet with other pools at these positions; itself if there are none."""
    if not pools:
        return fleet
    every = list(fleet.pools)
    for position, pool in pools.items():
        every[position] = pool
    return fleet.model_copy(update={"pools": tuple(every)})


def edited_endpoints(
    old: PoolSpec, new: PoolSpec
) -> tuple[tuple[EndpointSpec, EndpointSpec], ...] | None:
    """Return the endpoints that differ between two pools, compared by identity.

    ``None`` if endpoints were added or removed, or have another order.
    """
    was, now = old.endpoints, new.endpoints
    if len(was) != len(now):
        return None
    found = tuple(compress(zip(was, now, strict=True), map(is_not, was, now)))
    return found if all(one.id == two.id for one, two in found) else None


class Successive(Generic[_Value]):
    """A function of a fleet whose values are stepped; see the module's rules.

    Args:
        whole: Makes the value of a fleet.
        step: Makes it from that of another fleet, the differences, which are not empty, and the
            fleet; ``None`` if the whole function must do it. It must not change what it is given.
    """

    def __init__(
        self,
        whole: Callable[[Fleet], _Value],
        step: Callable[[_Value, Changes, Fleet], _Value | None],
    ) -> None:
        functools.update_wrapper(self, whole)
        self._whole, self._step = whole, step
        self._known: tuple[tuple[weakref.ref[Fleet], _Value], ...] = ()

    def __call__(self, fleet: Fleet) -> _Value:
        """Return the value of ``fleet``."""
        known = self._known
        for subject, value in known:
            if subject() is fleet:
                return value
        made = self._stepped(fleet)
        if made is None:
            made = self._whole(fleet)
        self._known = ((weakref.ref(fleet), made), *known[: KEPT - 1])
        return made

    def _stepped(self, fleet: Fleet) -> _Value | None:
        best: tuple[Changes, _Value] | None = None
        for subject, value in self._known:
            other = subject()
            changes = None if other is None else changed(other, fleet)
            if changes == ():
                return value
            if changes is not None and (best is None or len(changes) < len(best[0])):
                best = changes, value
        return None if best is None else self._step(best[1], best[0], fleet)


def each_pool(of_pool: Callable[[PoolSpec], PoolSpec]) -> Successive[Fleet]:
    """Return the function that replaces each pool of a fleet by ``of_pool`` of it."""

    def whole(fleet: Fleet) -> Fleet:
        return fleet.model_copy(update={"pools": tuple(map(of_pool, fleet.pools))})

    def step(before: Fleet, changes: Changes, _: Fleet) -> Fleet:
        made = {each.position: of_pool(each.now) for each in changes}
        return with_changed(
            before, {at: pool for at, pool in made.items() if pool != before.pools[at]}
        )

    return Successive(whole, step)
