"""Conditions: named health conditions that keep a replica from new work.

Rules:

1. A condition bars a replica in one pool only: a server with one broken model continues to serve
   the other models. ``silent`` is set by the router and bars no replica.
2. ``ejected`` (with its cause) has the hysteresis of ``ejection``. ``not-ready`` is set by
   ``BAD_TO_SET`` bad results in a row and ended by one good result. A model that a replica lacks is
   no condition of the replica (``placement``). ``low-gpu-memory`` is set when all readings over
   at least ``LOW_S`` are below the floor. It is ended by a reading ``MARGIN`` above the floor, and
   when there was no reading for ``UNKNOWN_AFTER_S``. ``asleep`` is set by a reading that says so,
   in all pools of the replica, and ended by one that says the opposite, or says nothing of it. A
   replica without results has no condition.
3. ``told`` stands for the findings of other pickers, as published by the control server. It bars a
   replica unless this picker has ejected it itself: then its own half-open requests decide when it
   is used again.
4. Conditions never empty a choice: if all candidates are barred, all are allowed, because an answer
   from an unhealthy replica is better than a refusal.
5. If no replica of a pool is barred, a decision costs one look-up.
6. A half-open replica gets only requests that the proxy can send again and that are not suspected
   of a replica's death.
7. Findings are this picker's own conditions only. Published findings are not reported again, so
   that pickers cannot keep each other's findings alive.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.blame.origins import UNKNOWN, identity, number_of
from ext_proc.routing.health.ejection import Ejection
from ext_proc.routing.health.ejection_record import Cause, Phase
from ext_proc.routing.health.latch import Latch
from ext_proc.routing.health.standing import StandingRequests

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from ext_proc.routing.health.standing import Stands
    from ext_proc.routing.state.candidates import Candidate
    from ext_proc.routing.values.pool import EndpointKey, Pool
    from ext_proc.routing.values.reading import Reading
    from ext_proc.routing.values.request import Request

BAD_TO_SET: Final = 2
LOW_S: Final = 2.0
MARGIN: Final = 0.02
"""Share of the GPU memory above the floor."""
UNKNOWN_AFTER_S: Final = 10.0
EJECTED: Final = "ejected"
SINKHOLE: Final = "sinkhole"
NOT_READY: Final = "not-ready"
LOW_GPU_MEMORY: Final = "low-gpu-memory"
ASLEEP: Final = "asleep"
TOLD: Final = "told"
SILENT: Final = "silent"
_SEVERAL: Final = 2
_NAMED_CAUSES: Final = (Cause.DEAD_BACKEND, Cause.FROZEN)
_NONE: Final[frozenset[EndpointKey]] = frozenset()


class Finding(NamedTuple):
    """A replica that this picker finds unhealthy."""

    pool: str
    key: EndpointKey
    conditions: tuple[str, ...]


def moved_on(before: Sequence[Reading], after: Sequence[Reading]) -> bool:
    """Return whether a replica's readings have changed, which shows that it makes progress.

    If an engine counts its iterations, only these are compared, because requests that queue at a
    stuck engine change its gauges as well.
    """
    if len(before) != len(after):
        return True
    return any(_moved(old, new) for old, new in zip(before, after, strict=True))


def _moved(old: Reading, new: Reading) -> bool:
    if old.iterations is not None and new.iterations is not None:
        return old.iterations != new.iterations
    return _gauges(old) != _gauges(new)


def _gauges(reading: Reading) -> tuple[float | None, ...]:
    return (reading.queued, reading.running, reading.kv_used, reading.reused_blocks)


def _may_try(request: Request) -> bool:
    """Return whether a request may be sent to a half-open replica (rule 6)."""
    suspected = request.care is not None and request.care.suspected
    return request.repeatable and not suspected and request.features.sequence_id is None


class Conditions:
    """The conditions of all replicas, by pool."""

    def __init__(self) -> None:
        self.ejections: dict[str, Ejection] = {}
        """By pool."""
        self._keys: dict[str, tuple[EndpointKey, ...]] = {}
        self._of: dict[EndpointKey, list[Ejection]] = {}
        """The ejections of each replica's pools."""
        self._not_ready = Latch(NOT_READY, BAD_TO_SET)
        self._low_memory = Latch(LOW_GPU_MEMORY, 1)
        self._asleep = Latch(ASLEEP, 1)
        self._latches = (self._not_ready, self._low_memory, self._asleep)
        self._sleeping: set[EndpointKey] = set()
        self._floors: dict[EndpointKey, list[tuple[str, float]]] = {}
        """Pools that check the GPU memory of a replica, and their floors."""
        self._low_since: dict[tuple[str, EndpointKey], float] = {}
        self._memory_at: dict[EndpointKey, float] = {}
        """When a replica's GPU memory was last reported, monotonic seconds."""
        self._published: dict[str, dict[EndpointKey, tuple[str, ...]]] = {}
        """Conditions that the control server publishes, by pool."""
        self._latched: dict[str, frozenset[EndpointKey]] = {}
        """Replicas with a latched condition; pools without any are absent."""
        self._sharing: frozenset[str] = frozenset()
        self.failing: set[str] = set()
        """Pools in which origins fail, so that good answers and picks should name theirs."""
        self.standing = StandingRequests()
        """Requests that replicas have whole and have not begun to answer."""
        self.ejected: Counter[tuple[str, Cause]] = Counter()
        """Ejections since the start, by pool and cause."""
        self.adapters: frozenset[str] = frozenset()
        """LoRA adapters that the readings of any replica name; set by the registry."""
        self.failed: dict[EndpointKey, float] = {}
        """Replicas whose latest sign was a connection that failed or broke, and when, monotonic
        seconds: fallbacks are others first (``decision.listed``)."""
        self.silent = 0
        """Number of replicas that stopped reporting; the scheduler puts them last."""

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Replace the pools; conditions of replicas that stay are kept."""
        for name, pool in pools.items():
            ejection = self.ejections.get(name)
            if ejection is None:
                ejection = self.ejections[name] = Ejection(partial(self._count, name))
            ejection.set_pool(pool)
            self._keys[name] = tuple([endpoint.key for endpoint in pool.endpoints])
        for name in [known for known in self.ejections if known not in pools]:
            del self.ejections[name], self._keys[name]
        self.failing &= self.ejections.keys()
        present_keys = {key for keys in self._keys.values() for key in keys}
        self.failed = {key: at for key, at in self.failed.items() if key in present_keys}
        self._of, self._floors, self._published = {}, {}, {}
        for name, pool in pools.items():
            for endpoint in pool.endpoints:
                self._of.setdefault(endpoint.key, []).append(self.ejections[name])
                if pool.gpu_memory_free > 0.0:
                    self._floors.setdefault(endpoint.key, []).append((name, pool.gpu_memory_free))
                if endpoint.told:
                    self._published.setdefault(name, {})[endpoint.key] = endpoint.told
        self._sharing = frozenset(name for name, pool in pools.items() if pool.share)
        checked = {(name, key) for key, floors in self._floors.items() for name, _ in floors}
        present = {(name, key) for name, keys in self._keys.items() for key in keys}
        self._not_ready.keep(present)
        self._asleep.keep(present)
        self._sleeping.intersection_update(self._of)
        self._low_memory.keep(checked)
        self._low_since = {one: at for one, at in self._low_since.items() if one in checked}
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

    # --- Results --------------------------------------------------------------------------------

    def good(
        self,
        pool: str,
        key: EndpointKey,
        first_byte_s: float | None,
        now: float,
        times: int = 1,
        client: int = UNKNOWN,
    ) -> None:
        """Note a good answer; see ``Ejection.good``."""
        ejection = self.ejections.get(pool)
        if self.failed:
            self.failed.pop(key, None)
        if ejection is not None:
            ejection.good(key, first_byte_s, now, times, client)
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
        origin: int | None = None,
        client: int = UNKNOWN,
    ) -> None:
        """Note a failure of the replica; see ``Ejection.bad``."""
        ejection = self.ejections.get(pool)
        if ejection is not None:
            if not answered:
                self.failed[key] = now
            ejection.bad(key, now, answered=answered, after_s=after_s, origin=origin, client=client)
            if ejection.failing:
                self.failing.add(pool)

    def well(self, pool: str, key: EndpointKey, origin: int, now: float, client: int) -> None:
        """Note that a replica answered an origin well; see ``Ejection.well``."""
        ejection = self.ejections.get(pool)
        if ejection is not None:
            ejection.well(key, origin, now, client)

    def ejects(self, pool: str) -> bool:
        """Return whether a replica of a pool is ejected or half open."""
        ejection = self.ejections.get(pool)
        return ejection is not None and bool(ejection.out)

    def undecided(self, pool: str, key: EndpointKey) -> None:
        """Note that a request ended and showed nothing; see ``Ejection.undecided``."""
        ejection = self.ejections.get(pool)
        if ejection is not None and ejection.out:
            ejection.undecided(key)

    def kept_waiting(self, key: EndpointKey, waited_s: float, now: float, client: int) -> None:
        """Note that an attempt waited in vain for a first answer; see ``Ejection.kept_waiting``."""
        for ejection in self._of.get(key, ()):
            ejection.kept_waiting(key, waited_s, now, client)

    def answered_since(self, pool: str, key: EndpointKey, since: float) -> bool | None:
        """Return whether a replica gave a good answer since then; see ``Breakers``."""
        ejection = self.ejections.get(pool)
        return None if ejection is None else ejection.answered_since(key, since)

    def alive(self, key: EndpointKey, now: float) -> None:
        """Note that a replica makes progress."""
        if self.failed:
            self.failed.pop(key, None)
        for ejection in self._of.get(key, ()):
            ejection.alive(key, now)

    def observe(
        self, key: EndpointKey, before: Sequence[Reading], after: Sequence[Reading]
    ) -> None:
        """Take the previous and the new readings of a replica."""
        asleep = any(each.asleep for each in after)
        if asleep or key in self._sleeping:
            self._sleeps(key, asleep=asleep)
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

    def _sleeps(self, key: EndpointKey, *, asleep: bool) -> None:
        if asleep:
            self._sleeping.add(key)
        else:
            self._sleeping.discard(key)
        for pool in self._keys:
            self._latch(self._asleep, pool, key, "" if asleep else None)

    def _memory(
        self, key: EndpointKey, floors: Sequence[tuple[str, float]], free: float, at: float
    ) -> None:
        self._memory_at[key] = at
        for pool, floor in floors:
            if free < floor:
                since = self._low_since.setdefault((pool, key), at)
                why = f"{free:.1%} of its GPU memory is free"
                if at - since >= LOW_S and self._low_memory.bad(pool, key, why):
                    self._gather(pool)
                continue
            self._low_since.pop((pool, key), None)
            if free >= min(floor + MARGIN, 1.0) and self._low_memory.good(pool, key):
                self._gather(pool)

    def probed(self, pool: str, key: EndpointKey, *, ready: bool, why: str = "") -> None:
        """Take the result of a readiness probe; an unknown replica is ignored.

        Args:
            pool: The pool for which it was probed.
            key: The replica.
            ready: Whether it is ready.
            why: What it did where it is not.
        """
        self._latch(self._not_ready, pool, key, None if ready else why)
        ejection = self.ejections.get(pool)
        if ejection is not None:
            ejection.probed(key, ready=ready)

    def _latch(self, latch: Latch, pool: str, key: EndpointKey, why: str | None) -> None:
        if key not in self._keys.get(pool, ()):
            return
        if latch.good(pool, key) if why is None else latch.bad(pool, key, why):
            self._gather(pool)

    def restarted(self, key: EndpointKey) -> None:
        """Reset the ejection of a replica whose process was restarted."""
        for ejection in self._of.get(key, ()):
            ejection.forget(key)

    def sweep(self, in_flight: Mapping[EndpointKey, int], now: float) -> None:
        """Look for busy replicas that make no progress; call about once a second."""
        standing = self.standing.by_replica(now)
        for ejection in self.ejections.values():
            ejection.sweep(in_flight, now, standing)
        self.failing = {pool for pool in self.failing if self.ejections[pool].failing}
        for key in [k for k, at in self._memory_at.items() if now - at > UNKNOWN_AFTER_S]:
            del self._memory_at[key]
            for pool, _ in self._floors.get(key, ()):
                self._low_since.pop((pool, key), None)
                if self._low_memory.good(pool, key):
                    self._gather(pool)

    @property
    def frozen(self) -> bool:
        """Whether any replica is found frozen."""
        return any(ejection.frozen() for ejection in self.ejections.values())

    def hung(self, stands: Stands, now: float) -> bool | None:
        """Return whether a request stands on a hung replica; see ``Ejection.hung``."""
        ejection = self.ejections.get(stands.pool)
        return None if ejection is None else ejection.hung(stands, now)

    # --- Decisions ------------------------------------------------------------------------------

    def keep(
        self, pool: str, candidates: Sequence[Candidate], now: float, request: Request
    ) -> Sequence[Candidate]:
        """Return the candidates that may get a request, or all candidates if none may."""
        ejection = self.ejections.get(pool)
        out: Collection[EndpointKey] = _NONE if ejection is None else ejection.out
        if not out and pool not in self._latched and pool not in self._published:
            return candidates
        latched, published = self._latched.get(pool), self._published.get(pool)
        barred = ejection.barred(now) if ejection is not None and out else set()
        if out and not _may_try(request):
            barred.update(out)
        if published:
            barred.update([key for key in published if key not in out])
        if latched:
            barred |= latched
        if not barred:
            return candidates
        return [candidate for candidate in candidates if candidate.key not in barred] or candidates

    def elsewhere(
        self, pool: str, candidates: Sequence[Candidate], request: Request, now: float
    ) -> Sequence[Candidate]:
        """Return the candidates without the one on which the request's origin fails, if any."""
        ejection = self.ejections.get(pool)
        if ejection is None or not ejection.failing or len(candidates) < _SEVERAL:
            return candidates
        key = ejection.avoided(number_of(identity(request)), now)
        return [each for each in candidates if each.key != key] if key else candidates

    def picked(self, pool: str, key: EndpointKey, now: float) -> None:
        """Note that a request is sent to a replica."""
        ejection = self.ejections.get(pool)
        if ejection is not None and ejection.out:
            ejection.picked(key, now)

    # --- Reports and state ----------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """Return this picker's own findings in the pools with ``share``, sorted."""
        return sorted(
            Finding(pool, key, tuple(self._own(pool, key)))
            for pool in self._sharing
            for key in self._unhealthy(pool)
        )

    def _unhealthy(self, pool: str) -> set[EndpointKey]:
        ejection = self.ejections.get(pool)
        return {*(() if ejection is None else ejection.out), *self._latched.get(pool, ())}

    def _own(self, pool: str, key: EndpointKey) -> Iterator[str]:
        ejection = self.ejections.get(pool)
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

    def unwell(self) -> Iterable[tuple[str, EndpointKey]]:
        """Return each pool and replica that has a condition."""
        for pool in self._keys:
            for key in {*self._unhealthy(pool), *self._published.get(pool, ())}:
                yield pool, key

    def of(self, pool: str, key: EndpointKey) -> list[str]:
        """Return the names of a replica's conditions; empty if it is healthy."""
        published = key in self._published.get(pool, ())
        return [*self._own(pool, key), *([TOLD] if published else [])]

    def describe(
        self, pool: str, key: EndpointKey, now: float, *, silent: bool
    ) -> dict[str, object]:
        """Return a replica's conditions with their reasons, ready for JSON."""
        ejection = self.ejections.get(pool)
        why = {latch.name: text for latch in self._latches if (text := latch.why(pool, key))}
        published = self._published.get(pool, {}).get(key)
        if published:
            why[TOLD] = ", ".join(published)
        return {
            "conditions": [*self.of(pool, key), *([SILENT] if silent else [])],
            "why": why,
            "outlier": {} if ejection is None else ejection.describe(key, now),
        }

    def counts(self) -> Iterable[tuple[str, str, int]]:
        """Return each pool and condition with the number of its replicas, if above 0."""
        found: Counter[tuple[str, str]] = Counter()
        for pool, key in self.unwell():
            found.update([(pool, name) for name in self.of(pool, key)])
        return [(pool, name, count) for (pool, name), count in sorted(found.items())]
