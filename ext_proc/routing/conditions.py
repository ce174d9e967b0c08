"""Conditions: named reasons, beside membership, for which a replica gets no new work.

Rules:

1. ``ejected`` (with its cause, see ``ejection``) and ``not-ready`` bar a replica in one pool: a
   server whose one model is broken goes on serving the others. ``silent`` is the router's own.
2. Hysteresis: ``NOT_READY_AFTER`` probes in a row that say no set ``not-ready``, one that says yes
   ends it. A replica that was never probed is not judged.
3. Conditions never empty a choice: where all seats are barred, all are allowed, as an answer from
   a sick replica is worth more than a refusal.
4. Where nobody is barred a decision pays one look-up.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from ext_proc.routing.ejection import Cause, Ejection, Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ext_proc.routing.roster import Seat
    from ext_proc.routing.types import EndpointKey, Pool, Reading

NOT_READY_AFTER: Final = 2
EJECTED: Final = "ejected"
NOT_READY: Final = "not-ready"
SILENT: Final = "silent"


def moved_on(before: Sequence[Reading], after: Sequence[Reading]) -> bool:
    """Tell whether a replica says something else than before: a sign of life."""
    return [_said(each) for each in before] != [_said(each) for each in after]


def _said(reading: Reading) -> tuple[float | None, ...]:
    return (reading.queued, reading.running, reading.kv_used, reading.reused_blocks)


class Conditions:
    """The conditions of all replicas, by pool."""

    def __init__(self) -> None:
        self._ejections: dict[str, Ejection] = {}
        self._keys: dict[str, tuple[EndpointKey, ...]] = {}
        self._of: dict[EndpointKey, list[Ejection]] = {}
        """Each replica's pools."""
        self._noes: dict[tuple[str, EndpointKey], int] = {}
        """Probes in a row that said no."""
        self._not_ready: dict[str, set[EndpointKey]] = {}
        self.ejected: Counter[tuple[str, Cause]] = Counter()
        """Ejections since the start, by pool and cause."""

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Take the pools; what is known of replicas that stay is kept."""
        for name, pool in pools.items():
            ejection = self._ejections.get(name)
            if ejection is None:
                ejection = self._ejections[name] = Ejection(partial(self._count, name))
            ejection.set_pool(pool)
            self._keys[name] = tuple([endpoint.key for endpoint in pool.endpoints])
        for name in [known for known in self._ejections if known not in pools]:
            del self._ejections[name], self._keys[name]
        self._of = {}
        for name, keys in self._keys.items():
            for key in keys:
                self._of.setdefault(key, []).append(self._ejections[name])
        present = {(name, key) for name, keys in self._keys.items() for key in keys}
        self._noes = {one: count for one, count in self._noes.items() if one in present}
        self._not_ready = {
            name: left
            for name, keys in self._not_ready.items()
            if (left := {key for key in keys if (name, key) in present})
        }

    def _count(self, pool: str, _: EndpointKey, cause: Cause) -> None:
        self.ejected[pool, cause] += 1

    # --- What happened --------------------------------------------------------------------------

    def good(self, pool: str, key: EndpointKey, first_byte_s: float | None, now: float) -> None:
        """Note an answer that is not the replica's failure; see ``Ejection.good``."""
        ejection = self._ejections.get(pool)
        if ejection is not None:
            ejection.good(key, first_byte_s, now)
            self.alive(key, now)

    def bad(self, pool: str, key: EndpointKey, now: float, *, answered: bool) -> None:
        """Note a failure of the replica; see ``Ejection.bad``."""
        ejection = self._ejections.get(pool)
        if ejection is not None:
            ejection.bad(key, now, answered=answered)

    def alive(self, key: EndpointKey, now: float) -> None:
        """Note that a replica does something."""
        for ejection in self._of.get(key, ()):
            ejection.alive(key, now)

    def probed(self, pool: str, key: EndpointKey, *, ready: bool) -> None:
        """Take the result of a probe of readiness; an unknown replica is ignored."""
        if key not in self._keys.get(pool, ()):
            return
        if ready:
            self._noes.pop((pool, key), None)
            barred = self._not_ready.get(pool)
            if barred is not None:
                barred.discard(key)
                if not barred:
                    del self._not_ready[pool]
            return
        count = self._noes[pool, key] = min(self._noes.get((pool, key), 0) + 1, NOT_READY_AFTER)
        if count >= NOT_READY_AFTER:
            self._not_ready.setdefault(pool, set()).add(key)

    def restarted(self, key: EndpointKey) -> None:
        """Forget what a replica did before its process was a new one."""
        for ejection in self._of.get(key, ()):
            ejection.forget(key)

    def sweep(self, in_flight: Mapping[EndpointKey, int], now: float) -> None:
        """Look who is busy without a sign of life, about once a second."""
        for ejection in self._ejections.values():
            ejection.sweep(in_flight, now)

    # --- Deciding -------------------------------------------------------------------------------

    def keep(self, pool: str, seats: Sequence[Seat], now: float) -> Sequence[Seat]:
        """Return the seats that may get new work, or all of them where none may."""
        ejection, not_ready = self._ejections.get(pool), self._not_ready.get(pool)
        if not ejection and not not_ready:
            return seats
        barred = ejection.barred(now) if ejection else set()
        if not_ready:
            barred |= not_ready
        if not barred:
            return seats
        return [seat for seat in seats if seat.key not in barred] or seats

    def picked(self, pool: str, key: EndpointKey, now: float) -> None:
        """Note that a request goes to a replica."""
        ejection = self._ejections.get(pool)
        if ejection:
            ejection.picked(key, now)

    # --- Showing --------------------------------------------------------------------------------

    def of(self, pool: str, key: EndpointKey) -> list[str]:
        """Return the names of a replica's conditions; empty where it is well."""
        names = []
        ejection = self._ejections.get(pool)
        if ejection is not None and ejection.phase(key) is not Phase.CLOSED:
            cause = ejection.cause(key)
            names.append(EJECTED)
            if cause in (Cause.DEAD_BACKEND, Cause.FROZEN):
                names.append(str(cause))
        if key in self._not_ready.get(pool, ()):
            names.append(NOT_READY)
        return names

    def describe(
        self, pool: str, key: EndpointKey, now: float, *, silent: bool
    ) -> dict[str, object]:
        """Return a replica's conditions with what led to them, ready for JSON."""
        ejection = self._ejections.get(pool)
        shown = {} if ejection is None else ejection.describe(key, now)
        names = [*self.of(pool, key), *([SILENT] if silent else [])]
        return {"conditions": names, "outlier": shown}

    def counts(self) -> Iterable[tuple[str, str, int]]:
        """Return pool, condition and how many of its replicas have it, where it is not 0."""
        found: Counter[tuple[str, str]] = Counter()
        for pool, keys in self._keys.items():
            for key in keys:
                for name in self.of(pool, key):
                    found[pool, name] += 1
        return [(pool, name, count) for (pool, name), count in sorted(found.items())]
