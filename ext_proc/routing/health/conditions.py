"""Conditions: named reasons, beside membership, for which a replica gets no new work.

Rules:

1. A condition bars a replica in one pool: a server whose one model is broken goes on serving the
   others. ``silent`` is the router's own and bars nobody.
2. ``ejected`` (with its cause) has the hysteresis of ``ejection``. ``not-ready`` and
   ``unavailable`` are set by ``NOES`` answers in a row and ended by one good answer; no answer to
   the repository index says nothing. ``low-gpu-memory`` is set when readings that are ``LOW_S``
   apart are below the floor and none between was not, ended by one that is ``MARGIN`` above it,
   and by silence of ``UNKNOWN_AFTER_S``. A replica that was never looked at is not judged.
3. ``told`` is what other pickers found, as the control server tells it. It bars unless this picker
   has ejected the replica itself: then its own half-open tries decide when it is well.
4. Conditions never empty a choice: where all candidates are barred, all are allowed, as an answer
   from a sick replica is worth more than a refusal.
5. Where nobody is barred a decision pays one look-up.
6. Findings are this picker's own conditions only. What it was told it never tells on, so that
   pickers cannot keep each other's findings alive.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.health.ejection import Ejection
from ext_proc.routing.health.ejection_record import Cause, Phase
from ext_proc.routing.health.latch import Latch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from ext_proc.routing.state.candidate import Candidate
    from ext_proc.routing.values.pool import EndpointKey, Pool
    from ext_proc.routing.values.reading import Reading

NOES: Final = 2
LOW_S: Final = 2.0
MARGIN: Final = 0.02
"""Share of the memory."""
UNKNOWN_AFTER_S: Final = 10.0
EJECTED: Final = "ejected"
SINKHOLE: Final = "sinkhole"
NOT_READY: Final = "not-ready"
UNAVAILABLE: Final = "unavailable"
LOW_GPU_MEMORY: Final = "low-gpu-memory"
TOLD: Final = "told"
SILENT: Final = "silent"
_NAMED_CAUSES: Final = (Cause.DEAD_BACKEND, Cause.FROZEN)
_NOBODY: Final[frozenset[EndpointKey]] = frozenset()


class Finding(NamedTuple):
    """A replica that this picker finds sick."""

    pool: str
    key: EndpointKey
    conditions: tuple[str, ...]


def moved_on(before: Sequence[Reading], after: Sequence[Reading]) -> bool:
    """Tell whether a replica says something else than before: a sign of life.

    Where an engine counts its iterations only these are one: requests that pile up in front of a
    stuck engine move its gauges as well.
    """
    if len(before) != len(after):
        return True
    return any(_moved(old, new) for old, new in zip(before, after, strict=True))


def _moved(old: Reading, new: Reading) -> bool:
    if old.iterations is not None and new.iterations is not None:
        return old.iterations != new.iterations
    return _said(old) != _said(new)


def _said(reading: Reading) -> tuple[float | None, ...]:
    return (reading.queued, reading.running, reading.kv_used, reading.reused_blocks)


class Conditions:
    """The conditions of all replicas, by pool."""

    def __init__(self) -> None:
        self._ejections: dict[str, Ejection] = {}
        self._keys: dict[str, tuple[EndpointKey, ...]] = {}
        self._of: dict[EndpointKey, list[Ejection]] = {}
        """Each replica's pools."""
        self._not_ready = Latch(NOT_READY, NOES)
        self._unavailable = Latch(UNAVAILABLE, NOES)
        self._low_memory = Latch(LOW_GPU_MEMORY, 1)
        self._latches = (self._not_ready, self._unavailable, self._low_memory)
        self._floors: dict[EndpointKey, list[tuple[str, float]]] = {}
        """Pools that look at the memory of a replica's GPUs, and their floors."""
        self._low_since: dict[tuple[str, EndpointKey], float] = {}
        self._memory_at: dict[EndpointKey, float] = {}
        """When a replica's memory was last told."""
        self._told: dict[str, dict[EndpointKey, tuple[str, ...]]] = {}
        self._latched: dict[str, frozenset[EndpointKey]] = {}
        """Who has a latched condition; pools without one are absent."""
        self._sharing: frozenset[str] = frozenset()
        self.ejected: Counter[tuple[str, Cause]] = Counter()
        """Ejections since the start, by pool and cause."""
        self.silent = 0
        """Replicas that stopped reporting: the scheduler puts them last."""

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
        self._of, self._floors, self._told = {}, {}, {}
        for name, pool in pools.items():
            for endpoint in pool.endpoints:
                self._of.setdefault(endpoint.key, []).append(self._ejections[name])
                if pool.gpu_memory_free > 0.0:
                    self._floors.setdefault(endpoint.key, []).append((name, pool.gpu_memory_free))
                if endpoint.told:
                    self._told.setdefault(name, {})[endpoint.key] = endpoint.told
        self._sharing = frozenset(name for name, pool in pools.items() if pool.share)
        looked_at = {(name, key) for key, floors in self._floors.items() for name, _ in floors}
        present = {(name, key) for name, keys in self._keys.items() for key in keys}
        asked = {one for one in present if pools[one[0]].repository}
        self._not_ready.keep(present)
        self._unavailable.keep(asked)
        self._low_memory.keep(looked_at)
        self._low_since = {one: at for one, at in self._low_since.items() if one in looked_at}
        self._memory_at = {key: at for key, at in self._memory_at.items() if key in self._floors}
        for name in {*self._latched, *self._keys}:
            self._gather(name)

    def _count(self, pool: str, _: EndpointKey, cause: Cause) -> None:
        self.ejected[pool, cause] += 1

    def _gather(self, pool: str) -> None:
        found = frozenset().union(*(latch.of(pool) for latch in self._latches))
        if found:
            self._latched[pool] = found
        else:
            self._latched.pop(pool, None)

    # --- What happened --------------------------------------------------------------------------

    def good(
        self, pool: str, key: EndpointKey, first_byte_s: float | None, now: float, times: int = 1
    ) -> None:
        """Note an answer that is not the replica's failure; see ``Ejection.good``."""
        ejection = self._ejections.get(pool)
        if ejection is not None:
            ejection.good(key, first_byte_s, now, times)
            for other in self._of.get(key, ()):
                if other is not ejection:
                    other.alive(key, now)

    def bad(
        self,
        pool: str,
        key: EndpointKey,
        now: float,
        *,
        answered: bool,
        after_s: float | None = None,
    ) -> None:
        """Note a failure of the replica; see ``Ejection.bad``."""
        ejection = self._ejections.get(pool)
        if ejection is not None:
            ejection.bad(key, now, answered=answered, after_s=after_s)

    def alive(self, key: EndpointKey, now: float) -> None:
        """Note that a replica does something."""
        for ejection in self._of.get(key, ()):
            ejection.alive(key, now)

    def heard(self, key: EndpointKey, before: Sequence[Reading], after: Sequence[Reading]) -> None:
        """Take what a replica says of itself now, and said before."""
        if not after:
            return
        if moved_on(before, after):
            self.alive(key, after[0].at)
        floors = self._floors.get(key)
        if floors:
            known = [each for each in after if each.gpu_memory_used is not None]
            if known:
                free = 1.0 - max(each.gpu_memory_used or 0.0 for each in known)
                self._memory(key, floors, free, min(each.at for each in known))

    def _memory(
        self, key: EndpointKey, floors: Sequence[tuple[str, float]], free: float, at: float
    ) -> None:
        self._memory_at[key] = at
        for pool, floor in floors:
            if free < floor:
                since = self._low_since.setdefault((pool, key), at)
                why = f"{free:.1%} of its GPU memory is free"
                if at - since >= LOW_S and self._low_memory.no(pool, key, why):
                    self._gather(pool)
                continue
            self._low_since.pop((pool, key), None)
            if free >= min(floor + MARGIN, 1.0) and self._low_memory.yes(pool, key):
                self._gather(pool)

    def probed(self, pool: str, key: EndpointKey, *, ready: bool) -> None:
        """Take the result of a probe of readiness; an unknown replica is ignored."""
        self._latch(self._not_ready, pool, key, None if ready else "")

    def indexed(self, pool: str, key: EndpointKey, why: str | None) -> None:
        """Take what a replica's repository index says; an unknown replica is ignored.

        Args:
            pool: The pool.
            key: The replica.
            why: Which model is not READY and why; ``None`` = all are.
        """
        self._latch(self._unavailable, pool, key, why)

    def _latch(self, latch: Latch, pool: str, key: EndpointKey, why: str | None) -> None:
        if key not in self._keys.get(pool, ()):
            return
        if latch.yes(pool, key) if why is None else latch.no(pool, key, why):
            self._gather(pool)

    def restarted(self, key: EndpointKey) -> None:
        """Forget what a replica did before its process was a new one."""
        for ejection in self._of.get(key, ()):
            ejection.forget(key)

    def sweep(self, in_flight: Mapping[EndpointKey, int], now: float) -> None:
        """Look who is busy without a sign of life, about once a second."""
        for ejection in self._ejections.values():
            ejection.sweep(in_flight, now)
        for key in [k for k, at in self._memory_at.items() if now - at > UNKNOWN_AFTER_S]:
            del self._memory_at[key]
            for pool, _ in self._floors.get(key, ()):
                self._low_since.pop((pool, key), None)
                if self._low_memory.yes(pool, key):
                    self._gather(pool)

    # --- Deciding -------------------------------------------------------------------------------

    def keep(self, pool: str, candidates: Sequence[Candidate], now: float) -> Sequence[Candidate]:
        """Return the candidates that may get new work, or all of them where none may."""
        ejection = self._ejections.get(pool)
        latched, told = self._latched.get(pool), self._told.get(pool)
        if not ejection and not latched and not told:
            return candidates
        barred = ejection.barred(now) if ejection else set()
        if told:
            own: Collection[EndpointKey] = ejection.out() if ejection else _NOBODY
            barred.update([key for key in told if key not in own])
        if latched:
            barred |= latched
        if not barred:
            return candidates
        return [candidate for candidate in candidates if candidate.key not in barred] or candidates

    def picked(self, pool: str, key: EndpointKey, now: float) -> None:
        """Note that a request goes to a replica."""
        ejection = self._ejections.get(pool)
        if ejection:
            ejection.picked(key, now)

    # --- Telling and showing --------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """Return whom this picker itself finds sick, in the pools that share it, in order."""
        return sorted(
            Finding(pool, key, tuple(self._own(pool, key)))
            for pool in self._sharing
            for key in self._sick(pool)
        )

    def _sick(self, pool: str) -> set[EndpointKey]:
        ejection = self._ejections.get(pool)
        return {*(ejection.out() if ejection else ()), *self._latched.get(pool, ())}

    def _own(self, pool: str, key: EndpointKey) -> Iterator[str]:
        ejection = self._ejections.get(pool)
        if ejection is not None and ejection.phase(key) is not Phase.CLOSED:
            cause = ejection.cause(key)
            yield EJECTED
            if cause in _NAMED_CAUSES:
                yield str(cause)
            if ejection.sinkhole(key):
                yield SINKHOLE
        for latch in self._latches:
            if key in latch.of(pool):
                yield latch.name

    def of(self, pool: str, key: EndpointKey) -> list[str]:
        """Return the names of a replica's conditions; empty where it is well."""
        told = key in self._told.get(pool, ())
        return [*self._own(pool, key), *([TOLD] if told else [])]

    def describe(
        self, pool: str, key: EndpointKey, now: float, *, silent: bool
    ) -> dict[str, object]:
        """Return a replica's conditions with what led to them, ready for JSON."""
        ejection = self._ejections.get(pool)
        why = {latch.name: text for latch in self._latches if (text := latch.why(pool, key))}
        told = self._told.get(pool, {}).get(key)
        if told:
            why[TOLD] = ", ".join(told)
        return {
            "conditions": [*self.of(pool, key), *([SILENT] if silent else [])],
            "why": why,
            "outlier": {} if ejection is None else ejection.describe(key, now),
        }

    def counts(self) -> Iterable[tuple[str, str, int]]:
        """Return pool, condition and how many of its replicas have it, where it is not 0."""
        found: Counter[tuple[str, str]] = Counter()
        for pool in self._keys:
            for key in {*self._sick(pool), *self._told.get(pool, ())}:
                for name in self.of(pool, key):
                    found[pool, name] += 1
        return [(pool, name, count) for (pool, name), count in sorted(found.items())]
