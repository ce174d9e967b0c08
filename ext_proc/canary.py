"""The sessions of pools with a rollout, as this process sees them. Pure.

Rules:

1. A session counts from its first request since the rollout began, in the arm that this request was
   drawn to and at the step in force. One that was seen before does not count; where this process is
   too young to know (``KNOWN_S``), none does. A request without a session is its own.
2. A request that was not drawn (the caller chose the variant) begins no session. When a session's
   later request goes to the other arm, a step has moved it: nothing more is told of it (it is
   *censored*), and what was told stays.
3. What is told: the times and the cache of the first request, and the first failure. A request
   that its caller abandoned, or whose mistake it was, is no failure, and has no times. A request
   without a session is told once, when it has ended.
4. At most ``MAX_SESSIONS`` sessions are known; beyond, the one seen least recently is forgotten.
   At most ``MAX_OPEN`` requests are followed to their end, and ``MAX_UNTOLD`` records kept until
   they are told. Where they would be more, ``limit`` is halved: half of the sessions, by their
   digests, are told no more. The sample is the same for both arms.
5. A rollout needs two variants, so sessions are followed in pools that have as many. Without a
   rollout, only when each session was seen last is kept. What one that has ended saw is told for
   ``AFTER_S`` more, with the ends of its requests until then, unless another one begins.
6. A session's digest is the same in all processes of a fleet. It is keyed by the fleet's seed. A
   session is what the weights draw by: the session, as far as the one that drew has read it; else
   the sequence; else a request is its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import xxhash

from ext_proc.routing.values.pool import Arms
from tidegate_common.canary import ALL, FirstRequest, SessionFailure, SessionRecord, sampled
from tidegate_common.fine_histogram import fine_bucket

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.request import Request


__all__ = ["Arms", "CanarySessions", "stratum_of"]
KNOWN_S: Final = 600.0
"""A session without a request for so long has ended: one seen then is new."""
AFTER_S: Final = 60.0
"""Seconds for which a rollout that has ended is told of."""
MAX_SESSIONS: Final = 65_536
MAX_OPEN: Final = 16_384
MAX_UNTOLD: Final = 16_384
MINUTE_S: Final = 60.0
SHORT: Final = 1.1
"""A first request falls short whose cached tokens times this are below the prediction."""
FINE_FROM: Final = 7
"""Doublings whose tokens take too little time to be told apart: below 128."""
LEAST_PREDICTED: Final = 256
"""Predicted tokens below which a prediction is not judged: they may be rounding."""
_MASK: Final = (1 << 64) - 1


class _Known:
    """A session that counts."""

    __slots__ = ("canary", "record", "seen_at", "silent")

    def __init__(self, record: SessionRecord, seen_at: float) -> None:
        self.record = record
        self.canary = record.canary
        self.seen_at = seen_at
        self.silent = False
        """Whether nothing more is told of it."""


class FirstPick(NamedTuple):
    """What the first request of a session is known to be when it is picked."""

    canary: bool
    unix_s: float
    form: str
    streams: bool
    uncached: int
    """Tokens of its prompt that are not cached, as predicted."""
    predicted: int
    """Tokens of its prompt that are cached, as predicted."""


_Open = tuple["_Known | None", int, bool, "FirstPick | None"]
"""A request that is followed to its end: its session (``None`` = its own), the step in force,
whether its model is one of the pool's, and what is known of a session's first."""


class CanarySessions:
    """The sessions of one pool; see the module's rules.

    Args:
        now: Monotonic seconds at which this process began to see the pool's requests.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self.arms: Arms | None = None
        """The rollout in force; ``None`` = none."""
        self.rollout: str | None = None
        """Id of the rollout that is told of: in force, or ended lately; ``None`` = of none."""
        self._ended_at = float("inf")
        self._known: dict[int, _Known | float] = {}
        """Sessions; of those that do not count, when they were seen."""
        self.open: dict[int, _Open] = {}
        """Requests that are followed to their end, by the numbers of their picks."""
        self._untold: dict[int, SessionRecord] = {}
        self.limit = ALL
        """The sample that is told; see ``tidegate_common.canary.sampled``."""
        self.offset = 0.0
        """Unix time of the latest pick less its monotonic time."""
        self.begun = [0, 0]
        """Sessions of canary and stable that began here."""
        self.failed = [0, 0]
        """Those of them that failed."""

    def set_arms(self, arms: Arms | None, now: float) -> None:
        """Take the rollout in force; ``None`` = there is none."""
        if arms is None and self.arms is not None:
            self._ended_at = now
        elif arms is not None:
            if self.rollout not in {None, arms.rollout}:
                self._forget()
            self.rollout, self._ended_at = arms.rollout, float("inf")
        self.arms = arms

    def settle(self, now: float) -> None:
        """Forget a rollout that ended ``AFTER_S`` ago."""
        if self.rollout is not None and now - self._ended_at >= AFTER_S:
            self._forget()

    def _forget(self) -> None:
        self._known = {
            key: each if isinstance(each, float) else each.seen_at
            for key, each in self._known.items()
        }
        self.open.clear()
        self._untold.clear()
        self.rollout, self.limit = None, ALL
        self.begun, self.failed = [0, 0], [0, 0]

    def seen(self, session: int, now: float) -> None:
        """Note when a session was seen that does not count."""
        known = self._known
        known.pop(session, None)
        known[session] = now
        if len(known) > MAX_SESSIONS:
            del known[next(iter(known))]

    def goes_on(
        self, ticket: int, session: int, variant: str, now: float, *, listed: bool = False
    ) -> bool:
        """Take a pick of a session that is known; return whether it is.

        Args:
            ticket: Its number; ``ended`` has the same.
            session: Digest of the session, 64 bits.
            variant: The variant that it was sent to.
            now: Monotonic seconds.
            listed: Whether its model is one of the pool's.
        """
        known, arms = self._known.pop(session, None), self.arms
        if known is None:
            return False
        if isinstance(known, float):
            if now - known <= KNOWN_S:
                self._known[session] = now
            return now - known <= KNOWN_S
        if now - known.seen_at > KNOWN_S:
            return False
        known.seen_at = now
        self._known[session] = known
        if known.silent or arms is None:
            return True
        if variant != (arms.canary if known.canary else arms.stable):
            known.silent = True
        elif self.limit == ALL or sampled(session, self.limit):
            self._follow(ticket, (known, arms.step, listed, None))
        return True

    def begins(
        self,
        ticket: int,
        session: int | None,
        variant: str,
        now: float,
        unix_s: float,
        *,
        drawn: bool = True,
        listed: bool = False,
        form: str = "",
        streams: bool = False,
        uncached: int = 0,
        predicted: int = 0,
    ) -> None:
        """Take the first pick of a session, or a pick without one.

        Args:
            ticket: Its number; ``ended`` has the same.
            session: Digest of the session, 64 bits; ``None`` = it names none.
            variant: The variant that it was sent to.
            now: Monotonic seconds.
            unix_s: Unix time.
            drawn: Whether weights chose the variant.
            listed: Whether its model is one of the pool's.
            form: Its form; see ``stratum_of``.
            streams: Whether its answer is streamed.
            uncached: Tokens of its prompt that are not cached, as predicted.
            predicted: Tokens of its prompt that are cached, as predicted.
        """
        arms = self.arms
        counts = arms is not None and drawn and variant in {arms.canary, arms.stable}
        if arms is None or not counts or (session is not None and now - self._since < KNOWN_S):
            if session is not None:
                self.seen(session, now)
            return
        self.offset = unix_s - now
        canary, known = variant == arms.canary, None
        if session is not None:
            record = SessionRecord(session, int(unix_s * 1000.0), arms.step, canary)
            known = self._known[session] = _Known(record, now)
            if len(self._known) > MAX_SESSIONS:
                del self._known[next(iter(self._known))]
            if self.limit < ALL and not sampled(session, self.limit):
                return
            self.begun[not canary] += 1
            self._tell(record)
        first = FirstPick(canary, unix_s, form, streams, uncached, predicted)
        self._follow(ticket, (known, arms.step, listed, first))

    def ended(
        self,
        ticket: int,
        unix_s: float,
        *,
        failed: bool,
        good: bool,
        times_s: Iterable[tuple[str, float]] = (),
        cached: int | None = None,
    ) -> None:
        """Take the end of a request.

        Args:
            ticket: The pick's number.
            unix_s: Unix time of the end.
            failed: Whether the service failed it.
            good: Whether it ended well.
            times_s: Seconds by kind of time, as far as they are known, in the kinds' order.
            cached: Tokens that the engine told; ``None`` = it did not.
        """
        opened = self.open.pop(ticket, None)
        if opened is None:
            return
        known, step, _, pick = opened
        if pick is None and (not failed or known is None):
            return
        minute, first, failure = int(unix_s // MINUTE_S), None, None
        if failed:
            failure = SessionFailure(minute, step)
        elif good and pick is not None:
            short = None
            if cached is not None and pick.predicted >= LEAST_PREDICTED:
                short = cached * SHORT < pick.predicted
            stratum = stratum_of(pick.form, pick.uncached, streams=pick.streams)
            times = tuple([(kind, fine_bucket(seconds)) for kind, seconds in times_s])
            first = FirstRequest(minute, stratum, times, short)
        if known is None:
            if pick is not None:
                self._own(ticket, step, pick, first, failure)
        elif not known.silent and (first or (failure and known.record.failure is None)):
            was = known.record
            if failure is not None:
                self.failed[not known.canary] += 1
            known.record = SessionRecord(
                was.digest,
                was.begun_ms,
                was.step,
                was.canary,
                first or was.first,
                failure or was.failure,
            )
            self._tell(known.record)

    def untold(self) -> list[SessionRecord]:
        """Return what has changed since ``told``; it may be told again without harm."""
        return list(self._untold.values())

    def told(self, records: Collection[SessionRecord]) -> None:
        """Forget what was told, unless it has changed since."""
        for each in records:
            if self._untold.get(each.digest) == each:
                del self._untold[each.digest]

    def describe(self) -> dict[str, object] | None:
        """Return the rollout and what is counted of it, ready for JSON; ``None`` = none runs."""
        arms = self.arms
        if arms is None:
            return None
        return {
            **arms._asdict(),
            "sessions": {"canary": self.begun[0], "stable": self.begun[1]},
            "failed": {"canary": self.failed[0], "stable": self.failed[1]},
            "known": len(self._known),
            "open": len(self.open),
            "untold": len(self._untold),
            "sample": self.limit / ALL,
        }

    def _follow(self, ticket: int, opened: _Open) -> None:
        if len(self.open) >= MAX_OPEN:
            del self.open[next(iter(self.open))]
        self.open[ticket] = opened

    def _own(
        self,
        ticket: int,
        step: int,
        pick: FirstPick,
        first: FirstRequest | None,
        failure: SessionFailure | None,
    ) -> None:
        """Tell of a request that is a session of its own, once it has ended."""
        digest = _of_ticket(ticket, pick.unix_s)
        if self.limit < ALL and not sampled(digest, self.limit):
            return
        self.begun[not pick.canary] += 1
        self.failed[not pick.canary] += failure is not None
        begun_ms = int(pick.unix_s * 1000.0)
        self._tell(SessionRecord(digest, begun_ms, step, pick.canary, first, failure))

    def _tell(self, record: SessionRecord) -> None:
        self._untold[record.digest] = record
        while len(self._untold) > MAX_UNTOLD:
            self.limit //= 2
            kept = {k: v for k, v in self._untold.items() if sampled(k, self.limit)}
            self._untold = kept


def stratum_of(form: str, uncached: int, *, streams: bool = False) -> str:
    """Return the stratum: the form, and the uncached tokens to a quarter of a doubling.

    A whole doubling is too wide: a canary that is cold has more tokens within it, too. With half as
    many tokens again, times at the margin were taken for worse in 40 of 40 simulated rollouts.
    """
    tokens = max(0, uncached)
    doubling = tokens.bit_length()
    quarter = tokens >> (doubling - 3) & 3 if doubling > FINE_FROM else None
    return _stratum(form, streams, doubling, quarter)


@lru_cache(maxsize=1024)  # few differ, and to write one takes a microsecond
def _stratum(form: str, streams: bool, doubling: int, quarter: int | None) -> str:
    name = f"{form}{'+' if streams else ''}/{doubling}"
    return name if quarter is None else f"{name}.{quarter}"


def _of_ticket(ticket: int, unix_s: float) -> int:
    """Return a digest that no session and no other request of any picker is likely to have."""
    return hash((ticket, unix_s)) & _MASK  # of numbers it is the same in each process


class CanaryRollouts:
    """The sessions by pool; see the module's rules."""

    def __init__(self) -> None:
        self.sessions: dict[str, CanarySessions] = {}
        """Those of all pools with two variants or more."""
        self.running: dict[str, CanarySessions] = {}
        """Those of pools with a rollout, or with one that ended lately; always the same object."""

    def set_pools(self, pools: Mapping[str, Pool], now: float) -> None:
        """Take all pools.

        Args:
            pools: The pools by name.
            now: Monotonic seconds.
        """
        before, self.sessions = self.sessions, {}
        self.running.clear()
        for name, pool in pools.items():
            if len(pool.variants) > 1:
                sessions = self.sessions[name] = before.get(name) or CanarySessions(now)
                sessions.set_arms(pool.canary, now)
                if sessions.rollout is not None:
                    self.running[name] = sessions

    def describe(self) -> dict[str, object]:
        """Return the rollouts that run by pool, ready for JSON."""
        return {name: each.describe() for name, each in self.running.items() if each.arms}


def session_digest(request: Request, pool: Pool) -> int | None:
    """Return the digest of a request's session, 64 bits; ``None`` = it is its own."""
    features = request.features
    name = features.session
    if name is not None and (request.variant is None or pool.session_header in request.headers):
        return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"), pool.seed)
    if features.sequence_id is None:
        return None
    text = repr(tuple(features.sequence or ()))
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), pool.seed)
