"""The sessions of a pool with a rollout, as this process sees them. Pure.

Rules:

1. A session counts from its first request since the rollout began, in the arm that this request was
   drawn to and at the step in force. One that was seen before does not count; where this process is
   too young to know (``KNOWN_S``), none does. A request without a session is its own.
2. A request that was not drawn (the caller chose the variant) begins no session. When a session's
   later request goes to the other arm, a step has moved it: nothing more is told of it (it is
   *censored*), and what was told stays.
3. What is told: the times and the cache of the first request, and the first failure. A request
   that its caller abandoned, or whose mistake it was, is no failure, and has no times.
4. At most ``MAX_SESSIONS`` sessions are known; beyond, the one seen least recently is forgotten.
   At most ``MAX_OPEN`` requests are followed to their end, and ``MAX_UNTOLD`` records kept until
   they are told. Where they would be more, ``limit`` is halved: half of the sessions, by their
   digests, are told no more. The sample is the same for both arms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate_common.canary import ALL, FirstRequest, SessionFailure, SessionRecord, sampled
from tidegate_common.fine_histogram import fine_bucket

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

KNOWN_S: Final = 600.0
"""A session without a request for so long has ended: one seen then is new."""
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


class Arms(NamedTuple):
    """A rollout of a pool, as far as a picker needs it."""

    rollout: str
    """Its id; another one begins anew."""
    canary: str
    """Names of variants."""
    stable: str
    step: int
    """Number of the step in force."""


class _Known:
    """A session."""

    __slots__ = ("record", "seen_at", "silent")

    def __init__(self, record: SessionRecord | None, seen_at: float) -> None:
        self.record = record
        """``None`` = it does not count."""
        self.seen_at = seen_at
        self.silent = record is None
        """Whether nothing more is told of it."""


class _Open(NamedTuple):
    known: _Known
    first: bool
    step: int


class CanarySessions:
    """The sessions of one pool; see the module's rules.

    Args:
        now: Monotonic seconds at which this process began to see the pool's requests.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self._arms: Arms | None = None
        self._known: dict[int, _Known] = {}
        self._open: dict[int, _Open] = {}
        self._untold: dict[int, SessionRecord] = {}
        self.limit = ALL
        """The sample that is told; see ``tidegate_common.canary.sampled``."""

    def set_arms(self, arms: Arms | None) -> None:
        """Take the rollout in force; ``None`` = there is none."""
        if arms is None or self._arms is None or arms.rollout != self._arms.rollout:
            for each in self._known.values():
                each.record, each.silent = None, True
            self._open.clear()
            self._untold.clear()
            self.limit = ALL
        self._arms = arms

    def picked(
        self,
        ticket: int,
        session: int | None,
        variant: str,
        now: float,
        unix_s: float,
        *,
        drawn: bool = True,
    ) -> None:
        """Take a pick.

        Args:
            ticket: Its number; ``ended`` has the same.
            session: Digest of the session, 64 bits; ``None`` = it names none.
            variant: The variant that it was sent to.
            now: Monotonic seconds.
            unix_s: Unix time.
            drawn: Whether weights chose the variant.
        """
        arms = self._arms
        key = _of_ticket(ticket, unix_s) if session is None else session
        known = None if session is None else self._known.pop(session, None)
        if known is not None and now - known.seen_at > KNOWN_S:
            known = None
        begins = known is None
        if known is None:
            known = _Known(
                self._begin(key, variant, now, unix_s, drawn=drawn, own=session is None), now
            )
        if session is not None:
            known.seen_at = now
            self._known[session] = known
            if len(self._known) > MAX_SESSIONS:
                del self._known[next(iter(self._known))]
        record = known.record
        if arms is None or record is None or known.silent or not sampled(key, self.limit):
            return
        if variant != (arms.canary if record.canary else arms.stable):
            known.silent = True
            return
        if begins:
            self._tell(record)
        if len(self._open) >= MAX_OPEN:
            del self._open[next(iter(self._open))]
        self._open[ticket] = _Open(known, begins, arms.step)

    def ended(
        self,
        ticket: int,
        unix_s: float,
        *,
        failed: bool,
        good: bool,
        stratum: str = "",
        times_s: Mapping[str, float] | None = None,
        predicted: int = 0,
        cached: int | None = None,
    ) -> None:
        """Take the end of a request.

        Args:
            ticket: The pick's number.
            unix_s: Unix time of the end.
            failed: Whether the service failed it.
            good: Whether it ended well.
            stratum: See ``stratum_of``.
            times_s: Seconds by kind of time, as far as they are known.
            predicted: Tokens that were predicted to be cached.
            cached: Tokens that the engine told; ``None`` = it did not.
        """
        opened = self._open.pop(ticket, None)
        if opened is None or opened.known.record is None or opened.known.silent:
            return
        record, minute = opened.known.record, int(unix_s // MINUTE_S)
        if failed and record.failure is None:
            record = record._replace(failure=SessionFailure(minute, opened.step))
        elif good and opened.first:
            times = tuple(sorted((k, fine_bucket(s)) for k, s in (times_s or {}).items()))
            judged = cached is not None and predicted >= LEAST_PREDICTED
            short = cached * SHORT < predicted if judged and cached is not None else None
            record = record._replace(first=FirstRequest(minute, stratum, times, short))
        if record is not opened.known.record:
            opened.known.record = record
            self._tell(record)

    def untold(self) -> list[SessionRecord]:
        """Return what has changed since ``told``; it may be told again without harm."""
        return list(self._untold.values())

    def told(self, records: Collection[SessionRecord]) -> None:
        """Forget what was told, unless it has changed since."""
        for each in records:
            if self._untold.get(each.digest) == each:
                del self._untold[each.digest]

    def _begin(
        self, key: int, variant: str, now: float, unix_s: float, *, drawn: bool, own: bool
    ) -> SessionRecord | None:
        arms = self._arms
        if arms is None or not drawn or variant not in {arms.canary, arms.stable}:
            return None
        if not own and now - self._since < KNOWN_S:
            return None
        return SessionRecord(key, int(unix_s * 1000.0), arms.step, variant == arms.canary)

    def _tell(self, record: SessionRecord) -> None:
        if not sampled(record.digest, self.limit):
            return
        self._untold[record.digest] = record
        while len(self._untold) > MAX_UNTOLD:
            self.limit //= 2
            kept = {k: v for k, v in self._untold.items() if sampled(k, self.limit)}
            self._untold = kept


def stratum_of(form: str, uncached: int) -> str:
    """Return the stratum: the form, and the uncached tokens to a quarter of a doubling.

    A whole doubling is too wide: a canary that is cold has more tokens within it, too. With half as
    many tokens again, times at the margin were taken for worse in 40 of 40 simulated rollouts.
    """
    tokens = max(0, uncached)
    doubling = tokens.bit_length()
    if doubling <= FINE_FROM:
        return f"{form}/{doubling}"
    return f"{form}/{doubling}.{(tokens >> (doubling - 3)) & 3}"


def _of_ticket(ticket: int, unix_s: float) -> int:
    """Return a digest that no session and no other request of any picker is likely to have."""
    mixed = (ticket * 0xD6E8FEB86659FD93 + int(unix_s * 1e9) * 0xA0761D6478BD642F) & ((1 << 64) - 1)
    return mixed ^ (mixed >> 29)
