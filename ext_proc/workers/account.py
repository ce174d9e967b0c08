"""What a worker does, in as few words as its peer workers need. Pure.

Rules:

1. Of charges and settles they hear sums: what is in flight on a replica for a pool, once for each
   batch in which it changed (``Share``). They need no ticket.
2. Of good answers that are told in one batch they hear one for each replica and pool: how many
   there were, and what they took on average. What counts against a replica is told one by one, in
   its place among the good ones.
3. Of what a request teaches they hear all while little is known, and then each fourth: learners
   take no more of it themselves (``pace.YOUNG``).
4. All else is told as it is, but what peer workers learn by themselves: who leaves, whose cache is
   purged, what engines tell of their caches.
5. Nothing is kept for longer than a request runs and its replica is a member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ext_proc.feedback.entries import Judged, Verdict
from ext_proc.routing.cache.prefix_index import Inserted
from ext_proc.routing.peers import LatencySample, Share
from ext_proc.routing.state.leases import Leased, Released
from ext_proc.routing.state.ledger import Charged, EndpointRemoved, Settled
from ext_proc.routing.values.ticket import DONE
from ext_proc.telemetry.news import PushEnded, ReadingsUpdate, Restarted, ScrapeFailed
from ext_proc.workers.news import Indexed, Probed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ext_proc.routing.cache.exact_index import IndexEvent
    from ext_proc.routing.state.leases import LeaseEvent
    from ext_proc.routing.state.ledger import LedgerEvent
    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.routing.values.ticket import Ticket
    from ext_proc.telemetry.news import TelemetryUpdate
    from ext_proc.workers.records import Word

    Deed: TypeAlias = (
        LedgerEvent | IndexEvent | LeaseEvent | TelemetryUpdate | Judged | Probed | Indexed
    )
    """What may be told."""
    Place = tuple[str, EndpointKey]
    """A pool's replica."""

LESSONS: Final = 256
"""Of each pool's, told one by one."""
THEN_EACH: Final = 4
_GOOD: Final = Verdict.GOOD
_AS_IT_IS: Final = (
    *(Inserted, Leased, Released),
    *(ReadingsUpdate, ScrapeFailed, Restarted, PushEnded),
    *(Probed, Indexed),
)
FOLDED: Final = frozenset({Charged, Settled, Judged, EndpointRemoved, *_AS_IT_IS})
"""What makes a difference to peer workers."""
_NOTHING: Final[tuple[Word, ...]] = ()


class _Sum:
    """What is in flight on a pool's replica."""

    __slots__ = ("changed", "charges", "in_flight", "place", "prefilled", "work")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.changed = False
        self.in_flight = 0
        self.work = 0.0
        self.charges = 0
        self.prefilled = 0.0

    def share(self) -> Share:
        """Return it as peer workers hear it."""
        pool, endpoint = self.place
        return Share(pool, endpoint, self.in_flight, self.work, self.charges, self.prefilled)


class _Good:
    """Good answers of a pool's replica that are not told yet."""

    __slots__ = ("answers", "answers_s", "bytes_per_s", "count", "firsts", "firsts_s", "rates")

    def __init__(self) -> None:
        self.count = 0
        self.firsts = self.answers = self.rates = 0
        self.firsts_s = self.answers_s = self.bytes_per_s = 0.0

    def add(self, judged: Judged) -> None:
        """Take an answer."""
        _, _, _, first_byte_s, answer_s, bytes_per_s, _, times = judged
        self.count += times
        if first_byte_s is not None:
            self.firsts += 1
            self.firsts_s += first_byte_s
        if answer_s is not None:
            self.answers += 1
            self.answers_s += answer_s
        if bytes_per_s is not None:
            self.rates += 1
            self.bytes_per_s += bytes_per_s

    def judged(self, place: Place) -> Judged:
        """Return them as one."""
        pool, endpoint = place
        return Judged(
            pool,
            endpoint,
            _GOOD,
            self.firsts_s / self.firsts if self.firsts else None,
            self.answers_s / self.answers if self.answers else None,
            self.bytes_per_s / self.rates if self.rates else None,
            times=self.count,
        )


class Account:
    """Folds the deeds of one worker."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[Ticket, _Sum]] = {}
        self._sums: dict[Place, _Sum] = {}
        self._changed: list[_Sum] = []
        self._good: dict[Place, _Good] = {}
        self._lessons: dict[str, int] = {}
        self._folds: dict[type, Callable[[Any, float], tuple[Word, ...]]] = {
            Charged: self._charged,
            Settled: self._settled,
            Judged: self._judged,
            EndpointRemoved: self._removed,
            **dict.fromkeys(_AS_IT_IS, _as_it_is),
        }

    def take(self, event: Deed, now: float) -> tuple[Word, ...]:
        """Fold what happened now; return what is to be told in its place.

        Args:
            event: A router's event, or what else peer workers may need.
            now: Monotonic seconds.
        """
        fold = self._folds.get(type(event))
        return _NOTHING if fold is None else fold(event, now)

    def sums(self) -> list[Word]:
        """Return the sums that are to be told now; the next ones are those of the next batch."""
        words: list[Word] = []
        for each in self._changed:
            each.changed = False
            words.append(each.share())
        words += [good.judged(place) for place, good in self._good.items()]
        self._changed.clear()
        self._good.clear()
        return words

    def standing(self) -> Iterator[Share]:
        """Yield what is in flight, for one that begins to listen."""
        return (each.share() for each in self._sums.values() if each.in_flight)

    def _charged(self, event: Charged, _: float) -> tuple[Word, ...]:
        ticket = event.ticket
        number, endpoint, pool, work, _, prompted, drain_s, _ = ticket
        place = pool, endpoint
        known = self._sums.get(place)
        if known is None:
            known = self._sums[place] = _Sum(place)
        known.in_flight += 1
        known.charges += 1
        known.work += work
        if prompted and drain_s is not None:
            known.prefilled += work
        self._open[number] = (ticket, known)
        if not known.changed:
            known.changed = True
            self._changed.append(known)
        return _NOTHING

    def _settled(self, event: Settled, now: float) -> tuple[Word, ...]:
        number, outcome = event
        found = self._open.pop(number, None)
        if found is None:
            return _NOTHING
        ticket, known = found
        known.in_flight -= 1
        known.work = max(known.work - ticket.work, 0.0) if known.in_flight else 0.0
        if not known.changed:
            known.changed = True
            self._changed.append(known)
        if outcome is not DONE or ticket.drain_s is None:
            return _NOTHING
        lesson = self._lessons.get(ticket.pool, 0)
        self._lessons[ticket.pool] = lesson + 1
        return (
            _NOTHING if lesson >= LESSONS and lesson % THEN_EACH else (LatencySample(ticket, now),)
        )

    def _judged(self, event: Judged, _: float) -> tuple[Word, ...]:
        place = event.pool, event.endpoint
        if event.verdict is not _GOOD:
            before = self._good.pop(place, None)
            return (event,) if before is None else (before.judged(place), event)
        good = self._good.get(place)
        if good is None:
            good = self._good[place] = _Good()
        good.add(event)
        return _NOTHING

    def _removed(self, event: EndpointRemoved, _: float) -> tuple[Word, ...]:
        for place in [each for each in self._sums if each[1] == event.key]:
            known = self._sums.pop(place)
            if known.changed:
                self._changed.remove(known)
        for number in [each for each, (one, _) in self._open.items() if one.endpoint == event.key]:
            del self._open[number]
        return _NOTHING


def _as_it_is(event: Word, _: float) -> tuple[Word, ...]:
    return (event,)
