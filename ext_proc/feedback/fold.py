"""Applies log entries to the router's state. Pure.

Rules:

1. Only entries of this picker's current run count: tickets carry its tag. Others are only counted.
2. The end of a stream settles a ticket; an entry never does: entries come up to a second later, in
   batches, and may be lost. A final entry judges replicas. An intermediate one moves the charge of
   a running request to the replica that serves it, and is a sign of life. Both are samples of the
   replica's response time.
3. For a retried request, the replica that served is credited with the response and the prompt's
   blocks, and each replica before it is charged with a failure.
4. Nothing is kept per request, so late, duplicate and unknown entries only increment a counter.
5. Verdicts of final entries are published to the machine's other workers, which apply them as their
   own: consecutive failures are counted per machine, however the requests were distributed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from ext_proc.feedback.entries import (
    FIRST_ERROR,
    GOOD,
    LOCAL,
    Judged,
    Verdict,
    answer_speed,
    answer_time,
    judge,
    passed_over,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.feedback.entries import Entry
    from ext_proc.routing.router import Router
    from ext_proc.routing.values.pool import EndpointKey

MAX_DIGITS: Final = 18
"""Maximum digits of a ticket's number."""
FOREIGN: Final = "foreign"
"""The entry belongs to another picker, or to an earlier run of this one."""
UNKNOWN: Final = "unknown"
"""The entry's replica is not (or no longer) in the pool."""
EARLY: Final = "early"
"""The entry's request is still running."""


class Feedback:
    """Applies log entries.

    Args:
        router: Router whose charges move and whose conditions change.
        picker: This picker's id.
        life: Prefix of this run's tickets.
        on_judged: Receives the verdicts of this picker's own entries.
    """

    def __init__(
        self,
        router: Router,
        *,
        picker: str,
        life: str,
        on_judged: Callable[[Judged], None] | None = None,
    ) -> None:
        self._on_judged = on_judged
        self._router = router
        self._learner = router.learner
        self._picker = picker
        self._life = life
        self.outcomes: Counter[str] = Counter()
        """Entries by verdict, or by the reason why they were ignored."""
        self.retried = 0
        """Requests served by a replica other than the pick."""
        self.moved = 0
        """Charges moved while their requests were running."""

    def state(self) -> dict[str, object]:
        """Return the counters, ready for JSON."""
        return {
            "entries": {str(outcome): count for outcome, count in self.outcomes.items()},
            "retried": self.retried,
            "moved": self.moved,
        }

    def take(self, entry: Entry, now: float) -> str:
        """Apply one entry and return its outcome.

        Args:
            entry: The entry.
            now: Monotonic seconds.
        """
        outcome = self._take(entry, now)
        self.outcomes[outcome] += 1
        return outcome

    def _take(self, entry: Entry, now: float) -> str:
        ticket, served = entry.ticket, entry.served
        ours = ticket.startswith(self._life) or not ticket
        if entry.picker != self._picker or not ours:
            return FOREIGN
        pool = entry.cluster.partition("/")[0]
        key = None if served is None else self._router.at(pool, served)
        if not entry.final:
            if key is not None:
                first_byte_s = answer_time(entry)
                if first_byte_s is not None:
                    self._learner.answered(pool, key, first_byte_s, None, now)
                    self._began(entry, key, first_byte_s)
                self._running(entry, key, now)
            return EARLY
        return self._ended(entry, pool, key, now)

    def _ended(self, entry: Entry, pool: str, key: EndpointKey | None, now: float) -> str:
        number = self._number(entry)
        if entry.attempts > 1:
            self._retried(entry, pool, key, number, now)
        verdict = judge(entry)
        if verdict is not GOOD and number is not None:
            self._router.rejected(number)
        if verdict is LOCAL:
            return verdict
        if key is None:
            return UNKNOWN
        if verdict is GOOD:
            judged = self._good(entry, pool, key, number, now)
        else:
            judged = self._failed(entry, pool, key, number, verdict, now)
        self._judged(judged, now)
        return verdict

    def _retried(
        self, entry: Entry, pool: str, key: EndpointKey | None, number: int | None, now: float
    ) -> None:
        """Blame the replicas of earlier attempts, and credit the one that served instead."""
        for address in passed_over(entry):
            failed = self._router.at(pool, address)
            if failed is not None:
                self._judged(Judged(pool, failed, Verdict.BROKEN), now)
        if key is not None and not entry.shed and entry.served != entry.picks.partition(",")[0]:
            self.retried += 1
            if number is not None:
                self._router.credit(number, key, now)

    def _good(
        self, entry: Entry, pool: str, key: EndpointKey, number: int | None, now: float
    ) -> Judged:
        router = self._router
        if number is not None:
            router.confirmed(number, key)
            if number in router.suspects:
                router.answered_well(number, key, now)
        answer_s = answer_time(entry)
        if answer_s is not None:
            self._began(entry, key, answer_s)
        first_byte_s = None if entry.attempts > 1 else entry.first_byte_s
        return Judged(pool, key, GOOD, first_byte_s, answer_s, answer_speed(entry))

    def _failed(
        self,
        entry: Entry,
        pool: str,
        key: EndpointKey,
        number: int | None,
        verdict: Verdict,
        now: float,
    ) -> Judged:
        began = entry.answer_bytes > 0
        if verdict is Verdict.BROKEN and not began and number is not None:
            self._router.died(key, number, now)
        first_byte_s = entry.first_byte_s if verdict is Verdict.ERROR else None
        return Judged(pool, key, verdict, first_byte_s, began=began)

    def _judged(self, judged: Judged, now: float) -> None:
        self.follow(judged, now)
        if self._on_judged is not None:
            self._on_judged(judged)

    def follow(self, judged: Judged, now: float) -> None:
        """Apply a verdict on a replica, from this worker or another one."""
        conditions = self._router.conditions
        pool, key, verdict, first_byte_s, answer_s, bytes_per_s, began, times = judged
        if verdict is GOOD:
            conditions.good(pool, key, first_byte_s, now, times)
            self._learner.answered(pool, key, answer_s, bytes_per_s, now)
        elif verdict is Verdict.CLIENT:
            conditions.good(pool, key, None, now)
        elif verdict is not Verdict.LEFT:
            answered = verdict is Verdict.ERROR
            conditions.bad(pool, key, now, answered=answered, after_s=first_byte_s)
        elif began:
            conditions.alive(key, now)

    def _began(self, entry: Entry, key: EndpointKey, first_byte_s: float) -> None:
        number = self._number(entry)
        if number is not None and entry.status < FIRST_ERROR:
            self._learner.began(number, key, first_byte_s)

    def _running(self, entry: Entry, key: EndpointKey, now: float) -> None:
        if entry.answer_bytes:
            self._router.conditions.alive(key, now)
        number = self._number(entry)
        if entry.served is not None and number is not None:
            self.moved += self._router.note_serving(number, entry.served, now)

    def _number(self, entry: Entry) -> int | None:
        text = entry.ticket[len(self._life) :]
        return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None
