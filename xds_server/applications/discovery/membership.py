"""Membership: runs the sources of all pools, admits what they find, and publishes the members.

Rules:

1. Each pool that finds replicas has an ``Admission`` and one task per source. A source that fails
   is started again after a delay; its error is shown, and what it found before stays.
2. Members are published when they differ from those published last, at most once per ``EVERY_S``.
   A publication that fails is logged and tried again after ``RETRY_S``.
3. Published members are stored, so that a restart begins with them. A store that cannot be written
   costs only this.
4. A revision with other pools or sources is taken over by ``notify``.
5. A question for a replica's readiness that raises is logged, and answered with no.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from tidegate_api.pools import MAX_LOW_OBJECTIVES
from tidegate_common.backoff import Backoff
from xds_server.applications.discovery.admission import Admission
from xds_server.applications.discovery.readiness import question_of
from xds_server.applications.discovery.table import SourceTools, settings_of, source_of
from xds_server.fleet.change import UnknownName
from xds_server.fleet.members.members import Members
from xds_server.fleet.members.origins import origins_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from xds_server.applications.discovery.readiness import Question
    from xds_server.applications.discovery.replica import Hold
    from xds_server.applications.discovery.values import Observation, Source
    from xds_server.fleet.members.members import Member
    from xds_server.fleet.members.origins import Origin
    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec

EVERY_S: Final = 0.2
RETRY_S: Final = 2.0
PROBE_EVERY_S: Final = 1.0
"""Seconds between two looks at the replicas that wait to be ready."""

_log = structlog.get_logger(__name__)

MAX_IDS: Final = 10
"""Most ids of one list in a log line."""


class FleetInForce(Protocol):
    """The fleet in force, and the publication of members."""

    @property
    def written(self) -> Fleet:
        """The fleet of the revision in force."""

    async def publish_members(self, members: Members) -> None:
        """Publish the fleet in force with these replicas found."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Times."""

    monotonic_s: Callable[[], float]
    unix_ms: Callable[[], int]


class SourceState(NamedTuple):
    """State of one source, for operators."""

    pool: str
    source: str
    endpoints: int | None
    """Number of endpoints of its last answer; ``None`` = it has not answered yet."""
    age_s: float | None
    """Seconds since its last answer."""
    trouble: str
    """Why looks fail; empty if they succeed."""


class PoolMembership(NamedTuple):
    """State of one pool's membership, for operators and metrics."""

    pool: str
    counts: Mapping[str, int]
    hold: Hold | None
    unfit: tuple[str, ...]
    nothing: str = ""
    """Why no replica takes work; empty if one does, or if a source has not answered yet."""


@dataclass(slots=True)
class _Watched:
    origin: Origin
    task: asyncio.Task[None]
    endpoints: int | None = None
    answered_at: float = 0.0
    trouble: str = ""
    low_objectives: tuple[str, ...] = ()


@dataclass(slots=True)
class _Pool:
    spec: PoolSpec
    admission: Admission
    sources: dict[str, _Watched] = field(default_factory=dict)
    held: tuple[str, ...] = ()
    """Ids of the hold that was logged last."""
    nothing: str = ""
    """Why no replica takes work, as it was logged last."""


class Membership:
    """Finds and publishes members; see the module's rules.

    Args:
        fleet: The fleet in force.
        tools: What sources are made with.
        clocks: Times.
        in_flight: Returns requests in flight by endpoint id, as pickers report them; ``None`` =
            unknown.
        is_ready: Returns whether a replica's model is ready.
        store: Stores published members; called in rule 3.
        make: Returns the source of an origin.
        remedy: What the log says against a hold.
    """

    def __init__(
        self,
        fleet: FleetInForce,
        tools: SourceTools,
        clocks: Clocks,
        in_flight: Callable[[], Mapping[str, int] | None],
        is_ready: Callable[[Question], Awaitable[bool]],
        store: Callable[[Members], Awaitable[None]],
        make: Callable[[Origin, SourceTools], Source] = source_of,
        *,
        remedy: str = "tidegate confirm {pool}",
    ) -> None:
        self._fleet = fleet
        self._tools = tools
        self._clocks = clocks
        self._in_flight = in_flight
        self._is_ready = is_ready
        self._store = store
        self._make = make
        self._remedy = remedy
        self._pools: dict[str, _Pool] = {}
        self._asked: set[tuple[str, str, str]] = set()
        """Pool, origin and identity of the replicas that are being asked."""
        self._changed = asyncio.Event()
        self._written: Fleet | None = None
        self._published: dict[str, tuple[Member, ...]] = {}
        self._published_low: dict[str, tuple[str, ...]] = {}

    # --- for the rest of the server -------------------------------------------------------------

    def notify(self) -> None:
        """Signal that another revision may be in force."""
        self._changed.set()

    def confirm(self, pool: str) -> int:
        """Let the held members of a pool go; return how many.

        Raises:
            UnknownName: No such pool, or it finds no replicas.
        """
        known = self._pools.get(pool)
        if known is None:
            raise UnknownName("pool that finds replicas", pool, self._pools)
        count = known.admission.confirm()
        if count:
            _log.warning("membership_confirmed", pool=pool, endpoints=count)
        self._changed.set()
        return count

    def now(self) -> float:
        """Return monotonic seconds."""
        return self._clocks.monotonic_s()

    def sources(self) -> list[SourceState]:
        """Return the state of each source."""
        now = self._clocks.monotonic_s()
        return [
            SourceState(
                name,
                key,
                each.endpoints,
                None if each.endpoints is None else now - each.answered_at,
                each.trouble,
            )
            for name, pool in self._pools.items()
            for key, each in pool.sources.items()
        ]

    def pools(self) -> list[PoolMembership]:
        """Return the state of each pool that finds replicas."""
        return [
            PoolMembership(
                name,
                each.admission.counts(),
                each.admission.hold,
                each.admission.unfit,
                each.nothing,
            )
            for name, each in self._pools.items()
        ]

    # --- running --------------------------------------------------------------------------------

    async def run(self, known: Members) -> None:
        """Find, admit and publish until cancelled.

        Args:
            known: The members that are published now.
        """
        self._published = dict(known.pools)
        self._published_low = dict(known.low_objectives)
        probing = asyncio.create_task(self._probe_all())
        try:
            while True:
                wait_s = await self._pass()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
                self._changed.clear()
                await asyncio.sleep(EVERY_S)
        finally:
            tasks = [probing, *(w.task for p in self._pools.values() for w in p.sources.values())]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass(self) -> float | None:
        """Apply everything that is known; return after how many seconds to do so again."""
        written = self._fleet.written
        if written is not self._written:
            self._configure(written)
            self._written = written
        now, unix_ms, in_flight = (
            self._clocks.monotonic_s(),
            self._clocks.unix_ms(),
            self._in_flight(),
        )
        known = self._born()
        found = {
            name: each.admission.settle(
                now, unix_ms, in_flight, lambda spec: known.get((spec.id, spec.http, spec.grpc))
            )
            for name, each in self._pools.items()
        }
        for name, each in self._pools.items():
            hold = each.admission.hold
            log_hold(name, each.held, hold, self._remedy.format(pool=name))
            each.held = () if hold is None else hold.ids
            nothing = each.admission.nothing()
            log_nothing(name, each.nothing, nothing)
            each.nothing = nothing
        found = {name: members for name, members in found.items() if members}
        low = self._low_objectives()
        if found != self._published or low != self._published_low:
            members = Members(found, low)
            try:
                await self._fleet.publish_members(members)
            except Exception:  # noqa: BLE001 - rule 2
                _log.exception("membership_not_published")
                return RETRY_S
            log_changes(self._published, found)
            self._published, self._published_low = found, low
            await self._store(members)
        return min(
            (
                at - now
                for each in self._pools.values()
                if (at := each.admission.next_at) is not None
            ),
            default=None,
        )

    def _low_objectives(self) -> dict[str, tuple[str, ...]]:
        """Return the objectives of the lower band by pool; as published before all sources told."""
        low = {}
        for name, pool in self._pools.items():
            told = {each for source in pool.sources.values() for each in source.low_objectives}
            if any(source.endpoints is None for source in pool.sources.values()):
                told.update(self._published_low.get(name, ()))
            if told:
                low[name] = tuple(sorted(told)[:MAX_LOW_OBJECTIVES])
        return low

    def _born(self) -> dict[tuple[str, str | None, str | None], tuple[int, int]]:
        """Return incarnation and joining of each member, by id and addresses."""
        return {
            (each.spec.id, each.spec.http, each.spec.grpc): (each.incarnation, each.joined_unix_ms)
            for pool in self._pools.values()
            for each in pool.admission.members
        }

    # --- sources --------------------------------------------------------------------------------

    def _configure(self, fleet: Fleet) -> None:
        pools = {pool.name: pool for pool in fleet.pools if pool.finds}
        for name in self._pools.keys() - pools.keys():
            for watched in self._pools.pop(name).sources.values():
                watched.task.cancel()
        for name, spec in pools.items():
            known = self._pools.get(name)
            if known is None:
                admission = Admission(spec, self._published.get(name, ()))
                known = self._pools[name] = _Pool(spec, admission)
            elif known.spec is not spec:
                known.spec = spec
                known.admission.configure(spec)
            self._watch_sources(name, known)

    def _watch_sources(self, name: str, pool: _Pool) -> None:
        origins = origins_of(pool.spec)
        for key, watched in list(pool.sources.items()):
            origin = origins.get(key)
            if origin is None or settings_of(origin) != settings_of(watched.origin):
                watched.task.cancel()
                del pool.sources[key]
        for key, origin in origins.items():
            if key not in pool.sources:
                task = asyncio.create_task(self._watch(name, key, self._make(origin, self._tools)))
                pool.sources[key] = _Watched(origin, task)

    async def _watch(self, pool: str, key: str, source: Source) -> None:
        task, backoff = asyncio.current_task(), Backoff(self._tools.rng)

        def watched() -> _Watched | None:
            known = self._pools.get(pool)
            each = None if known is None else known.sources.get(key)
            return each if each is not None and each.task is task else None

        def found(observation: Observation) -> None:
            each = watched()
            if each is not None:
                backoff.reset()
                each.endpoints = len(observation.endpoints)
                each.answered_at = self._clocks.monotonic_s()
                each.low_objectives = observation.low_objectives
                self._pools[pool].admission.observe(key, observation)
                self._changed.set()

        def trouble(reason: str) -> None:
            each = watched()
            if each is None or each.trouble == reason:
                return
            if not reason:
                _log.info("source_answers_again", pool=pool, source=key)
            elif not each.trouble:
                _log.warning("source_failed", pool=pool, source=key, error=reason)
            each.trouble = reason

        while True:
            try:
                await source.run(found, trouble)
                trouble("the source ended")
            except Exception as error:  # noqa: BLE001 - rule 1
                trouble(f"{type(error).__name__}: {error}"[:400])
            await asyncio.sleep(backoff.delay_s())

    async def _probe_all(self) -> None:
        """Ask each replica that waits, again after ``PROBE_EVERY_S``; slow ones delay no others."""
        async with asyncio.TaskGroup() as asking:
            while True:
                await asyncio.sleep(PROBE_EVERY_S)
                for name, pool in self._pools.items():
                    for origin, identity, spec in pool.admission.waiting():
                        key = (name, origin, identity)
                        if key not in self._asked:
                            self._asked.add(key)
                            asking.create_task(self._probe(name, origin, identity, spec))

    async def _probe(self, name: str, origin: str, identity: str, spec: EndpointSpec) -> None:
        known, ready = self._pools.get(name), False
        try:
            if known is not None:
                ready = await self._is_ready(question_of(known.spec, spec))
        except Exception as error:  # noqa: BLE001 - rule 5
            _log.warning("readiness_failed", pool=name, endpoint=spec.id, error=str(error)[:400])
        finally:
            self._asked.discard((name, origin, identity))
        if known is not None:
            known.admission.probed(origin, identity, spec, ready=ready)
        if ready:
            self._changed.set()


def log_hold(pool: str, before: tuple[str, ...], hold: Hold | None, remedy: str) -> None:
    """Log the hold of a pool if it is not of the replicas ``before``."""
    if before == (() if hold is None else hold.ids):
        return
    if hold is None:
        _log.info("membership_released", pool=pool)
        return
    _log.error(
        "membership_held",
        pool=pool,
        vanished=len(hold.ids),
        of=hold.of,
        endpoints=hold.ids[:MAX_IDS],
        remedy=remedy,
    )


def log_nothing(pool: str, before: str, now: str) -> None:
    """Log that a pool has no replica that takes work, again if the reason is another; or its end.

    Args:
        pool: The pool.
        before: Why it had none; empty = it had one.
        now: Why it has none.
    """
    if now and now != before:
        _log.error("pool_without_replicas", pool=pool, reason=now)
    elif before and not now:
        _log.info("pool_with_replicas", pool=pool)


def log_changes(
    before: Mapping[str, tuple[Member, ...]], after: Mapping[str, tuple[Member, ...]]
) -> None:
    """Log of each pool which members have joined, begun to drain, and left."""
    for name in {**before, **after}:
        was = dict(_states(before.get(name, ())))
        now = dict(_states(after.get(name, ())))
        changed = {i: state for i, state in now.items() if was.get(i) != state}
        gone = [i for i in was if i not in now]
        if changed or gone:
            _log.info(
                "membership_changed",
                pool=name,
                active=[i for i, s in changed.items() if not s.endswith("draining")][:MAX_IDS],
                draining=[i for i, s in changed.items() if s.endswith("draining")][:MAX_IDS],
                removed=gone[:MAX_IDS],
                members=len(now),
            )


def _states(members: tuple[Member, ...]) -> Iterator[tuple[str, str]]:
    for member in members:
        state = "draining" if member.spec.draining else "active"
        yield member.spec.id, f"{member.incarnation} {state}"
