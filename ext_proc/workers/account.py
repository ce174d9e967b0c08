"""Condenses a worker's events to the messages that its peer workers need. Pure.

Rules:

1. Charges and settles are sent as sums: a ``Share`` is a replica's in-flight load for a pool and a
   model, sent once per batch in which it changed. Peers need no tickets.
2. Good answers of one batch are sent as one message per replica and pool: their number and their
   means. All other judgements, and good answers whose origin matters, are sent one by one, in order
   with the others.
3. Of latency samples all are sent while few are known, and then every fourth: the learners
   themselves use no more (``latency.model.YOUNG``).
4. All other events are sent unchanged, except those that peers observe by themselves: removed
   endpoints, purged caches, and engines' cache events.
5. State is kept only while a request runs and its replica is a member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ext_proc.blame.law import Effect
from ext_proc.feedback.entries import Judged
from ext_proc.routing.cache.index_events import Inserted
from ext_proc.routing.cache.trials import Confirmed, Withdrawn
from ext_proc.routing.peers import LatencySample, Share
from ext_proc.routing.state.leases import Leased, Released
from ext_proc.routing.state.ledger import Charged, EndpointRemoved, Settled
from ext_proc.routing.suspicion import SUSPICION_EVENTS
from ext_proc.routing.values.ticket import DONE
from ext_proc.telemetry.news import PushEnded, ReadingsUpdate, Restarted, ScrapeFailed
from ext_proc.workers.news import HeldLease, Looked, LookWanted, Probed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ext_proc.routing.cache.index_events import IndexEvent
    from ext_proc.routing.cache.trials import Verdict as TrialVerdict
    from ext_proc.routing.state.leases import LeaseEvent
    from ext_proc.routing.state.ledger import LedgerEvent
    from ext_proc.routing.suspicion import SuspicionEvent
    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.routing.values.ticket import Ticket
    from ext_proc.telemetry.news import TelemetryUpdate
    from ext_proc.workers.records import Message

    LocalEvent: TypeAlias = (
        LedgerEvent
        | IndexEvent
        | TrialVerdict
        | LeaseEvent
        | TelemetryUpdate
        | Judged
        | Probed
        | Looked
        | LookWanted
        | HeldLease
        | SuspicionEvent
    )
    """An event of this worker that may be replicated."""
    Place = tuple[str, EndpointKey]
    """Pool and replica."""
    ModelPlace = tuple[str, EndpointKey, str | None]
    """Pool, replica, and model as which requests count against limits."""

ALL_SAMPLES: Final = 256
"""Latency samples of each pool that are all sent; afterwards every ``THEN_EVERY``-th."""
THEN_EVERY: Final = 4
_GOOD: Final = Effect.GOOD
_UNCHANGED: Final = (
    *(Inserted, Confirmed, Withdrawn, Leased, Released),
    *(ReadingsUpdate, ScrapeFailed, Restarted, PushEnded),
    *(HeldLease, Probed, Looked, LookWanted),
    *SUSPICION_EVENTS,
)
FOLDED: Final = frozenset({Charged, Settled, Judged, EndpointRemoved, *_UNCHANGED})
"""Events that are relevant to peer workers."""
_NOTHING: Final[tuple[Message, ...]] = ()


class _Sum:
    """In-flight load of a pool's replica and a model."""

    __slots__ = ("changed", "charges", "in_flight", "place", "prefilled", "work")

    def __init__(self, place: ModelPlace) -> None:
        self.place = place
        self.changed = False
        self.in_flight = 0
        self.work = 0.0
        self.charges = 0
        self.prefilled = 0.0

    def share(self) -> Share:
        """Return the load as the message for peer workers."""
        pool, endpoint, model = self.place
        return Share(pool, endpoint, self.in_flight, self.work, self.charges, self.prefilled, model)


class _Good:
    """Good answers of a pool's replica that have not been sent yet."""

    __slots__ = ("answers", "answers_s", "bytes_per_s", "count", "firsts", "firsts_s", "rates")

    def __init__(self) -> None:
        self.count = 0
        self.firsts = self.answers = self.rates = 0
        self.firsts_s = self.answers_s = self.bytes_per_s = 0.0

    def add(self, judged: Judged) -> None:
        """Add an answer."""
        _, _, _, first_byte_s, answer_s, bytes_per_s, _, times, _, _ = judged
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
        """Return the answers as one message."""
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
    """Condenses the events of one worker."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[Ticket, _Sum]] = {}
        self._sums: dict[ModelPlace, _Sum] = {}
        self._changed: list[_Sum] = []
        self._good: dict[Place, _Good] = {}
        self._samples: dict[str, int] = {}
        self._folds: dict[type, Callable[[Any, float], tuple[Message, ...]]] = {
            Charged: self._charged,
            Settled: self._settled,
            Judged: self._judged,
            EndpointRemoved: self._removed,
            **dict.fromkeys(_UNCHANGED, _unchanged),
        }

    def take(self, event: LocalEvent, now: float) -> tuple[Message, ...]:
        """Process an event; return the messages to send in its place.

        Args:
            event: A router's event, or another event that peer workers may need.
            now: Monotonic seconds.
        """
        fold = self._folds.get(type(event))
        return _NOTHING if fold is None else fold(event, now)

    def sums(self) -> list[Message]:
        """Return the sums to send now, and start those of the next batch."""
        messages: list[Message] = []
        for each in self._changed:
            each.changed = False
            messages.append(each.share())
        messages += [good.judged(place) for place, good in self._good.items()]
        self._changed.clear()
        self._good.clear()
        return messages

    def standing(self) -> Iterator[Share]:
        """Yield the current in-flight load, for a new reader."""
        return (each.share() for each in self._sums.values() if each.in_flight)

    def _charged(self, event: Charged, _: float) -> tuple[Message, ...]:
        ticket = event.ticket
        number, endpoint, pool, work, _, prompted, drain_s = ticket[:7]
        place = pool, endpoint, ticket.model
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

    def _settled(self, event: Settled, now: float) -> tuple[Message, ...]:
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
        if outcome is not DONE or ticket.drain_s is None or ticket.coming:
            return _NOTHING
        samples = self._samples.get(ticket.pool, 0)
        self._samples[ticket.pool] = samples + 1
        return (
            _NOTHING
            if samples >= ALL_SAMPLES and samples % THEN_EVERY
            else (LatencySample(ticket, now),)
        )

    def _judged(self, event: Judged, _: float) -> tuple[Message, ...]:
        place = event.pool, event.endpoint
        if event.effect is not _GOOD or event.origin:
            before = self._good.pop(place, None)
            return (event,) if before is None else (before.judged(place), event)
        good = self._good.get(place)
        if good is None:
            good = self._good[place] = _Good()
        good.add(event)
        return _NOTHING

    def _removed(self, event: EndpointRemoved, _: float) -> tuple[Message, ...]:
        for place in [each for each in self._sums if each[1] == event.key]:
            known = self._sums.pop(place)
            if known.changed:
                self._changed.remove(known)
        for number in [each for each, (one, _) in self._open.items() if one.endpoint == event.key]:
            del self._open[number]
        return _NOTHING


def _unchanged(event: Message, _: float) -> tuple[Message, ...]:
    return (event,)
