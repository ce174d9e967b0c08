"""Watches the conditions of replicas: logs when one is left alone and when it is back.

Rules:

1. ``look`` compares the conditions with those of the last look. A replica is *left alone* while it
   has any condition but ``silent``, which puts it last in a choice and does not bar it.
2. At most ``MAX_LINES`` replicas are logged in one look; one more line counts the others.
3. Of the workers of a picker only the one that leads logs: all know the same conditions.
4. A look costs time only for replicas with conditions; ``states`` passes over all of them.
5. A *note* is what is wrong with a replica that does not keep requests from it: it is slow, or
   slower than before, its variant queues, its KV events do not tell its cache, it has another chat
   template or tokenizer, or its reporter's certificate ends soon. Notes are reported; they are not
   logged and no conditions.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from ext_proc.control.reporting.queues import Queues
from ext_proc.routing.health.conditions import EJECTED, SILENT
from ext_proc.routing.health.ejection_record import Cause
from ext_proc.routing.pipeline.slow_start import factor
from tidegate_api.fleet.v1 import report_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ext_proc.routing.health.slowness import Slow
    from ext_proc.routing.router import Router
    from ext_proc.routing.values.pool import EndpointKey

    Place = tuple[str, EndpointKey]
    """A pool, and a replica in it."""

MAX_LINES: Final = 20
MAX_AGE_MS: Final = 2**31
MAX_LIMITS: Final = 8
"""Models of a replica whose limits are reported."""
MAX_QUEUES: Final = 1024
"""Pools whose queues are reported."""
SLOW: Final = "slow"
SLOWER: Final = "slower"
QUEUE: Final = "queue"
KV_EVENTS: Final = "kv-events"
TOKENS: Final = "tokens"
CERTIFICATE: Final = "certificate"
HALF_OPEN: Final = "half-open"
"""Reported in place of ``ejected`` once the ejection is over and single requests are tried."""

_log = structlog.stdlib.get_logger("ext_proc.replicas")


class Note(NamedTuple):
    """What is wrong with a replica that does not keep requests from it."""

    cause: str
    since: float
    """When it was first seen, monotonic seconds."""


class ReplicaWatch:
    """The conditions of all replicas; see the module's rules.

    Args:
        router: The router whose replicas are watched.
        clock: Monotonic seconds.
        wall_clock: Unix seconds, for slow start.
        leads: Returns whether this worker logs.
        kv_notes: Returns the replicas whose KV events do not tell their caches, and why.
        token_notes: Returns pool and replica where prompts have other tokens than the picker
            computes, and how that shows.
        certificate_notes: Returns what is wrong with the certificates of replicas' reporters, by
            endpoint id.
    """

    def __init__(
        self,
        router: Router,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        leads: Callable[[], bool] = lambda: True,
        kv_notes: Callable[[], Iterable[tuple[EndpointKey, str]]] = tuple,
        token_notes: Callable[[], Iterable[tuple[Place, str]]] = tuple,
        certificate_notes: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._router = router
        self._clock = clock
        self._wall_clock = wall_clock
        self._leads = leads
        self._kv_notes = kv_notes
        self._token_notes = token_notes
        self._certificate_notes = certificate_notes
        self._queues = Queues()
        self._known: dict[tuple[str, EndpointKey], tuple[str, ...]] = {}
        self._since: dict[tuple[str, EndpointKey, str], float] = {}
        """When each condition was first seen, monotonic seconds."""
        self._noted: dict[Place, dict[str, Note]] = {}
        self.changes = 0
        """Number of looks that found other conditions than the one before."""

    def look(self) -> None:
        """Compare the conditions with those of the last look."""
        now = self._clock()
        self._note(now)
        found = {place: tuple(names) for place, names in self._unwell()}
        before = self._known
        if found == before:
            return
        self._known = found
        self.changes += 1
        self._since = {
            (*place, name): self._since.get((*place, name), now)
            for place, names in found.items()
            for name in names
        }
        if self._leads():
            self._tell(before, found)

    def _note(self, now: float) -> None:
        before, self._noted = self._noted, {}
        for place, name, cause in self._notes(now):
            known = before.get(place, {}).get(name)
            note = Note(cause, now if known is None else known.since)
            self._noted.setdefault(place, {})[name] = note
        if {k: v.keys() for k, v in before.items()} != {
            k: v.keys() for k, v in self._noted.items()
        }:
            self.changes += 1

    def _notes(self, now: float) -> Iterator[tuple[Place, str, str]]:
        """Yield pool and replica, the name of a note, and its cause."""
        router, slowness = self._router, self._router.slowness
        members = router.registry.members
        slowness.look(now, members)
        for pool, key, slow in slowness.slow():
            yield (pool, key), SLOW, cause_of_slowness(slow, "its peers'")
        for pool, key, slow in slowness.slower():
            yield (pool, key), SLOWER, cause_of_slowness(slow, "those of the last 15 minutes")
        self._queues.look(now, router.pools, members, {*router.conditions.unwell()})
        for place, waiting in self._queues.found():
            yield place, QUEUE, str(waiting)
        guessed, ending = dict(self._kv_notes()), self._certificate_notes()
        for name, each in router.pools.items() if guessed or ending else ():
            for endpoint in each.endpoints:
                if endpoint.key in guessed:
                    yield (name, endpoint.key), KV_EVENTS, guessed[endpoint.key]
                if endpoint.key.id in ending:
                    yield (name, endpoint.key), CERTIFICATE, ending[endpoint.key.id]
        for place, cause in self._token_notes():
            yield place, TOKENS, cause

    def notes(self) -> Iterator[tuple[str, str, str]]:
        """Yield pool, endpoint id and name of each note."""
        for (pool, key), found in self._noted.items():
            for name in found:
                yield pool, key.id, name

    def _unwell(self) -> Iterator[tuple[tuple[str, EndpointKey], list[str]]]:
        router = self._router
        conditions = router.conditions
        for pool, key in conditions.unwell():
            names = conditions.of(pool, key)
            phase = conditions.describe(pool, key, self._clock(), silent=False)["outlier"]
            if isinstance(phase, dict) and phase.get("phase") == HALF_OPEN:
                names = [HALF_OPEN if name == EJECTED else name for name in names]
            yield (pool, key), names

    def _tell(
        self,
        before: Mapping[tuple[str, EndpointKey], tuple[str, ...]],
        found: Mapping[tuple[str, EndpointKey], tuple[str, ...]],
    ) -> None:
        left = [place for place in found if place not in before]
        pools = self._router.pools
        back = [
            (pool, key)
            for pool, key in before
            if (pool, key) not in found
            and pool in pools
            and any(each.key == key for each in pools[pool].endpoints)
        ]
        for pool, key in left[:MAX_LINES]:
            conditions = self._conditions(pool, key, silent=False)
            _log.warning(
                "replica_left_alone",
                pool=pool,
                replica=key.id,
                conditions=[each.name for each in conditions],
                cause="; ".join(each.cause for each in conditions if each.cause),
                for_s=next(
                    (round(e.left_seconds, 1) for e in conditions if e.HasField("left_seconds")),
                    None,
                ),
            )
        for pool, key in back[:MAX_LINES]:
            _log.info("replica_back", pool=pool, replica=key.id, was=list(before[pool, key]))
        more = max(len(left) - MAX_LINES, 0) + max(len(back) - MAX_LINES, 0)
        if more:
            _log.warning("replicas_changed", further=more)

    def states(self) -> Iterator[report_pb2.ReplicaState]:
        """Yield the state of each replica in each pool."""
        router, now, unix_now = self._router, self._clock(), self._wall_clock()
        unwell = {*router.conditions.unwell()}
        members = router.registry.members
        for name, pool in router.pools.items():
            for endpoint in pool.endpoints:
                key, replica = endpoint.key, members[endpoint.key]
                state = report_pb2.ReplicaState(pool=name, id=key.id)
                if replica.silent or (name, key) in unwell:
                    state.conditions.extend(self._conditions(name, key, silent=replica.silent))
                for noted, note in self._noted.get((name, key), {}).items():
                    state.notes.add(
                        name=noted, cause=note.cause, for_seconds=max(now - note.since, 0.0)
                    )
                limits = router.limits.in_force(pool, key)
                for model, limit in islice(limits, MAX_LIMITS):
                    state.limits.add(model=model, most=limit.most, source=limit.source)
                if replica.readings:
                    age = now - min(each.at for each in replica.readings)
                    state.reading_age_ms = int(min(max(age, 0.0) * 1000.0, MAX_AGE_MS))
                if pool.slow_start.window_s > 0.0:
                    joined = _joined(endpoint.joined_unix_s, replica.restarted_unix_s)
                    share = factor(pool.slow_start, joined, unix_now)
                    if share < 1.0:
                        state.ramp_percent = round(share * 100.0)
                yield state

    def queues(self) -> Iterator[report_pb2.PoolQueue]:
        """Yield the pools of which requests wait."""
        now, queue = self._clock(), self._router.queue
        found: dict[str, report_pb2.PoolQueue] = {}
        for (pool, model), count in queue.counts().items():
            if pool not in found and len(found) >= MAX_QUEUES:
                continue
            told = found.setdefault(pool, report_pb2.PoolQueue(pool=pool))
            told.waiting += count
            wait_s = queue.wait_s(pool, model, now)
            if wait_s is not None:
                told.wait_seconds = max(told.wait_seconds, wait_s)
        yield from found.values()

    def _conditions(
        self, pool: str, key: EndpointKey, *, silent: bool
    ) -> list[report_pb2.Condition]:
        told = self._router.conditions.describe(pool, key, self._clock(), silent=silent)
        names, why, outlier = told["conditions"], told["why"], told["outlier"]
        made = []
        if isinstance(names, list) and isinstance(why, dict) and isinstance(outlier, dict):
            for name in names:
                condition = report_pb2.Condition(name=name, cause=why.get(name, ""))
                if name == EJECTED:
                    _ejected(condition, outlier)
                elif name == SILENT:
                    condition.cause = "its metrics page cannot be read"
                since = self._since.get((pool, key, condition.name))
                if since is not None:
                    condition.for_seconds = max(self._clock() - since, 0.0)
                made.append(condition)
        return made


def _ejected(condition: report_pb2.Condition, outlier: Mapping[str, object]) -> None:
    """Fill in why, and for how long, a replica is ejected."""
    left, row, share = (
        outlier[each] for each in ("ejected_for_s", "failures_in_row", "failure_share")
    )
    condition.cause = cause_of(str(outlier["cause"]), row, share)
    if isinstance(left, float):
        condition.left_seconds = left
    if outlier["phase"] == HALF_OPEN:
        condition.name = HALF_OPEN


def cause_of(cause: str, row: object, share: object) -> str:
    """Return the cause of an ejection in words.

    Args:
        cause: Value of ``Cause``.
        row: Failures in a row.
        share: The failure share, 0..1; ``None`` = unknown.
    """
    number = row if isinstance(row, int) and row > 0 else ""
    if cause == Cause.FROZEN:
        return "no sign of life with requests in flight"
    if cause == Cause.SLOW:
        return "its first bytes come much later than its peers'"
    if cause == Cause.RATIO and isinstance(share, float):
        return f"{share:.0%} of its answers failed"
    noun = "error" if cause == Cause.DEAD_BACKEND else "failure"
    return f"{number} {noun}{'' if number == 1 else 's'}".strip()


def cause_of_slowness(slow: Slow, than: str) -> str:
    """Return in words how slow a replica is."""
    return (
        f"its requests take {slow.factor:.1f} times as long as {than} (the latest {slow.requests})"
    )


def _joined(joined: float | None, restarted: float | None) -> float | None:
    """Return when a replica joined or was restarted last, Unix seconds; ``None`` = it is warm."""
    known = [each for each in (joined, restarted) if each is not None]
    return max(known) if known else None
