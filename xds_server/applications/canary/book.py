"""The sessions of a rollout, merged over all pickers, minute by minute. Pure.

Rules:

1. Records are merged by ``tidegate_common.canary.earlier``: a session that several pickers saw is
   one, and so is what is told twice, late, or by a picker that was restarted. A picker that first
   sees a session after a step has moved it tells it as the canary's: what began later in the other
   arm is left out.
2. A minute is closed once every picker that is heard told what it knows of later times, or
   ``LATE_S`` after its end. What comes later for it is counted in the next minute that is closed:
   a session's failure counts once, and its first request once.
3. A failure belongs to the shares of its steps: the canary's when the session began, and what was
   left to stable when it failed. A session of stable that a step has moved by then is left out by
   the picker.
4. The outcome of a canary session is known ``OUTCOME_MIN`` minutes after it began: whether it
   failed by then. All sessions have the same time for it, so that long ones do not look better.
5. At most ``MAX_SESSIONS`` sessions are kept. Where they would be more, ``limit`` is halved, and
   half of all sessions are forgotten by their digests; no picker's sample is larger.
6. A picker that told nothing for ``SILENT_S`` is missing: ``silent`` names it.
7. After a restart the sessions of before are left out: they are censored, in both arms alike, and
   counted no second time. What had been counted of them is in the evidence; what had not is still
   in ``uncounted``, which says what a rollout has cost.
"""

from __future__ import annotations

import base64
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tidegate_common.canary import ALL, FirstRequest, SessionRecord, sampled
from tidegate_common.canary import earlier as merged
from xds_server.applications.canary.evidence import Minute
from xds_server.applications.canary.statistics.cache import CacheCell
from xds_server.applications.canary.statistics.times import TimeCell

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tidegate_common.canary import FirstRequest, SessionRecord

LATE_S: Final = 30.0
SILENT_S: Final = 30.0
OUTCOME_MIN: Final = 10
MAX_SESSIONS: Final = 262_144
MAX_PICKERS: Final = 2_048
MINUTE_S: Final = 60.0


class _Session:
    """A session and what was counted of it."""

    __slots__ = ("begun", "failed", "first", "known", "record")

    def __init__(self, record: SessionRecord) -> None:
        self.record = record
        self.begun = self.first = self.failed = self.known = False


class SessionBook:
    """See the module's rules.

    Args:
        minute: Minutes since 1970: the first that is closed.
        shares: The canary's share of new sessions by step, each above 0 and below 1.
        minute_s: Seconds of a minute, in everything here; 60 but where rollouts take seconds, as in
            tests. Records name real minutes: what they tell of is taken for as early as it may be.
    """

    def __init__(self, minute: int, shares: Sequence[float], minute_s: float = MINUTE_S) -> None:
        self._minute = minute
        self._shares = shares
        self._minute_s = minute_s
        self._sessions: dict[int, _Session] = {}
        self._open: set[int] = set()
        """Digests of sessions of which something is still to be counted."""
        self._left: set[int] = set()
        """Digests of sessions that are left out (rule 7)."""
        self._heard: dict[str, float] = {}
        """Unix time up to which each picker told what it knows."""
        self._before: tuple[list[int], list[int]] = ([0, 0], [0, 0])
        """What was uncounted of those; see ``uncounted``."""
        self.limit = ALL
        self.late = 0
        """What was counted in a later minute than its own."""

    def take(
        self, picker: str, records: Iterable[SessionRecord], limit: int, until_s: float
    ) -> None:
        """Take a picker's report.

        Args:
            picker: Its id.
            records: What has changed.
            limit: Its sample.
            until_s: Unix time up to which it has told what it knows.
        """
        self._heard[picker] = max(until_s, self._heard.pop(picker, until_s))
        if len(self._heard) > MAX_PICKERS:
            del self._heard[next(iter(self._heard))]
        if limit < self.limit:
            self._sample(limit)
        for each in records:
            if not 0 <= each.step < len(self._shares) or not sampled(each.digest, self.limit):
                continue
            if each.digest in self._left:
                continue
            session = self._sessions.get(each.digest)
            if session is None:
                session = self._sessions[each.digest] = _Session(each)
            elif each.canary is session.record.canary:
                session.record = merged(session.record, each)
            elif each.begun_ms < session.record.begun_ms:
                session.record = each
            self._open.add(each.digest)
        while len(self._sessions) + len(self._left) > MAX_SESSIONS:
            self._sample(self.limit // 2)

    def gone(self, picker: str) -> None:
        """Forget a picker that left the fleet: its part is not missing any more."""
        self._heard.pop(picker, None)

    def silent(self, now_s: float) -> list[str]:
        """Return the pickers that are not heard, whose part is missing."""
        return sorted(name for name, until in self._heard.items() if now_s - until >= SILENT_S)

    def close(self, now_s: float) -> list[Minute]:
        """Return the minutes that are over, in their order (rule 2)."""
        found: list[Minute] = []
        while True:
            end_s = (self._minute + 1) * self._minute_s
            told = bool(self._heard) and min(self._heard.values()) >= end_s
            if now_s < end_s or not (told or now_s >= end_s + min(LATE_S, self._minute_s)):
                return found
            found.append(self._count(self._minute))
            self._minute += 1

    def uncounted(self) -> tuple[list[int], list[int]]:
        """Return the sessions, and those of them that failed, that no closed minute has counted.

        Both are of the canary, then of stable.
        """
        begun, failed = map(list, self._before)
        for each in map(self._sessions.__getitem__, self._open):
            arm = not each.record.canary
            begun[arm] += not each.begun
            failed[arm] += each.record.failure is not None and not each.failed
        return begun, failed

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON values: eight bytes for each session (rule 7)."""
        seen = self._left.union(self._sessions)
        packed = b"".join(each.to_bytes(8, "little") for each in sorted(seen))
        return {
            "minute": self._minute,
            "limit": self.limit,
            "seen": base64.b64encode(packed).decode("ascii"),
            "uncounted": self.uncounted(),
        }

    @classmethod
    def restored(
        cls, state: Mapping[str, Any], shares: Sequence[float], minute_s: float = MINUTE_S
    ) -> SessionBook:
        """Return the book whose state ``dump`` returned."""
        made = cls(state["minute"], shares, minute_s)
        made.limit = state["limit"]
        begun, failed = state.get("uncounted", made._before)
        made._before = (list(begun), list(failed))
        packed = base64.b64decode(state["seen"])
        made._left = {
            int.from_bytes(packed[at : at + 8], "little") for at in range(0, len(packed), 8)
        }
        return made

    def _sample(self, limit: int) -> None:
        self.limit = limit
        self._sessions = {k: v for k, v in self._sessions.items() if sampled(k, limit)}
        self._left = {each for each in self._left if sampled(each, limit)}
        self._open &= self._sessions.keys()

    def _count(self, minute: int) -> Minute:
        """Count what happened by the end of a minute and was not counted before."""
        tally = _Tally(minute, self._minute_s)
        self._open = {each for each in self._open if not tally.add(self._sessions[each])}
        self.late += tally.late
        return tally.minute(self._shares)


class _Tally:
    """What is counted in a minute."""

    def __init__(self, minute: int, minute_s: float) -> None:
        self._minute = minute
        self._minute_s = minute_s
        self._failures: Counter[tuple[int, int, bool]] = Counter()
        self._begun, self._known = [0, 0], [0, 0]
        self._times: dict[str, dict[str, tuple[Counter[int], Counter[int]]]] = {}
        self._cache = [0, 0, 0, 0]
        self.late = 0

    def add(self, session: _Session) -> bool:
        """Count what is new of a session; return whether nothing more is to be counted of it."""
        record = session.record
        began = int(record.begun_ms / 1000.0 // self._minute_s)
        failure, first = record.failure, record.first
        failed = None if failure is None else self._of(failure.minute)
        ended = None if first is None else self._of(first.minute)
        if not session.begun and began <= self._minute:
            session.begun = True
            self._begun[not record.canary] += 1
        if failure is not None and failed is not None and not session.failed:
            session.failed = failed <= self._minute
            if session.failed:
                self.late += failed < self._minute
                self._failures[record.step, max(failure.step, record.step), record.canary] += 1
        if first is not None and ended is not None and not session.first:
            session.first = ended <= self._minute
            if session.first:
                self.late += ended < self._minute
                self._first(first, not record.canary)
        if not session.known and self._minute - began >= OUTCOME_MIN:
            session.known = True
            if record.canary:
                self._known[0] += 1
                self._known[1] += failed is not None and failed - began <= OUTCOME_MIN
        told = session.failed == (failure is not None) and session.first == (first is not None)
        return session.known and told

    def _of(self, minute: int) -> int:
        """Return the minute of the book in which a minute of 60 s begins."""
        return int(minute * MINUTE_S // self._minute_s)

    def minute(self, shares: Sequence[float]) -> Minute:
        """Return what was counted."""
        cells: dict[tuple[float, float], list[int]] = {}
        for (step, then, canary), count in self._failures.items():
            left = 1.0 - shares[min(then, len(shares) - 1)]
            cells.setdefault((shares[step], left), [0, 0])[not canary] += count
        return Minute(
            {key: (both[0], both[1]) for key, both in cells.items()},
            (self._begun[0], self._begun[1]),
            (self._known[0], self._known[1]),
            {
                kind: {stratum: TimeCell(*both) for stratum, both in strata.items()}
                for kind, strata in self._times.items()
            },
            CacheCell(*self._cache),
        )

    def _first(self, first: FirstRequest, arm: bool) -> None:
        for kind, bucket in first.times:
            strata = self._times.setdefault(kind, {})
            strata.setdefault(first.stratum, (Counter(), Counter()))[arm][bucket] += 1
        if first.short is not None:
            self._cache[2 * arm] += 1
            self._cache[2 * arm + 1] += first.short
