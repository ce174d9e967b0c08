"""Which standbys of a variant are in use. Pure.

Rules:

1. Standbys come in when the usable share of a variant's other replicas, together with the usable
   standbys that are in, is less than ``below``: as many as make up ``until``, in the fleet's order.
   One that pickers leave alone does not count, and is not chosen.
2. They go back, all at once, when the usable share of the other replicas has been at least
   ``until`` for ``hold_s`` without a break.
3. Nothing changes while no picker reports: what is unknown is no reason, neither to come in nor to
   go back, and the time of rule 2 begins anew.
4. A standby that is no longer one, or drains, is forgotten. A variant without standbys has none.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xds_server.applications.traffic.picker_runs import Key


class VariantSight(NamedTuple):
    """A variant with standbys."""

    below: float
    until: float
    hold_s: float
    replicas: int
    """Those that are no standbys, usable or not."""
    usable: int
    """Those of them that may get requests."""
    standbys: Sequence[str]
    """Ids of the standbys that do not drain, in the fleet's order."""
    ill: frozenset[str] = frozenset()
    """Those of them that pickers leave alone."""


class StandbyMachine:
    """Decides which standbys are in; see the module's rules.

    Args:
        came: The standbys that are in at the start, by pool and variant.
    """

    def __init__(self, came: Mapping[Key, Iterable[str]]) -> None:
        self._in: dict[Key, tuple[str, ...]] = {key: tuple(ids) for key, ids in came.items()}
        self._well_since: dict[Key, float] = {}

    def step(
        self, now: float, seen: Mapping[Key, VariantSight], *, known: bool
    ) -> dict[Key, tuple[str, ...]]:
        """Return the standbys that are in, of each variant that has any.

        Args:
            now: Monotonic seconds.
            seen: The variants with standbys.
            known: At least one picker reports.
        """
        for key in [each for each in self._in if each not in seen]:
            del self._in[key]
        for key in [each for each in self._well_since if each not in seen or not known]:
            del self._well_since[key]
        for key, sight in seen.items():
            here = tuple(each for each in self._in.get(key, ()) if each in sight.standbys)
            self._in[key] = self._step(now, key, sight, here) if known else here
        return {key: ids for key, ids in self._in.items() if ids}

    def _step(
        self, now: float, key: Key, sight: VariantSight, here: tuple[str, ...]
    ) -> tuple[str, ...]:
        if not sight.replicas:
            return here
        wanted = math.ceil(sight.until * sight.replicas - 1e-9)
        if here and sight.usable >= wanted:
            since = self._well_since.setdefault(key, now)
            if now - since >= sight.hold_s:
                del self._well_since[key]
                return ()
        else:
            self._well_since.pop(key, None)
        serving = sight.usable + sum(each not in sight.ill for each in here)
        if serving >= sight.below * sight.replicas:
            return here
        free = [each for each in sight.standbys if each not in here and each not in sight.ill]
        return (*here, *free[: max(0, wanted - serving)])
