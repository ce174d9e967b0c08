"""What became of the latest requests: the pick with its prices, who served, how it ended. Pure.

Rules:

1. The latest ``KEPT`` picks and the latest ``KEPT`` ends are kept apart, and joined by the ticket's
   number when an operator asks. On the path of a request each costs one write into a ring.
2. Kept longer: the latest ``REFUSALS`` refusals, the latest ``FAILURES`` requests that the service
   failed, and the ``SLOWEST`` slowest requests of each of the last ``MINUTES`` minutes.
3. Of a pick among more than ``MOST_PRICES`` candidates no prices are kept.
4. Nothing is kept of a request but its id and its trace, each at most ``MAX_ID`` characters.
"""

from __future__ import annotations

from collections import deque
from heapq import heappush, heapreplace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ext_proc.observability.traffic import FAILURES as FAILED
from ext_proc.observability.traffic import GOOD
from tidegate_api.names import REQUEST_ID_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ext_proc.blame.evidence import Attempt
    from ext_proc.exchange import Pick, Refuse
    from ext_proc.routing.pipeline.scheduler import Decision

KEPT: Final = 4096
REFUSALS: Final = 256
FAILURES: Final = 256
ATTEMPTS: Final = 1024
"""Failed attempts that are kept."""
SLOWEST: Final = 16
MINUTES: Final = 5
MINUTE_S: Final = 60.0
MOST_PRICES: Final = 64
MAX_ID: Final = 128
MAX_FOUND: Final = 16
"""Maximum records that one id finds: a client may send the same id again."""
MAX_ANSWER: Final = 1024
"""Bytes of a refusal's answer that are kept."""
MAX_DIGITS: Final = 18
"""Maximum digits of a ticket's number."""
TRACEPARENT: Final = "traceparent"
_TRACE: Final = slice(3, 35)
"""Where ``traceparent`` has the trace's id."""
_new: Final = tuple.__new__
"""Creates an ``End`` without the overhead of a named tuple's own constructor."""


class Picked(NamedTuple):
    """A pick that was handed to the proxy."""

    number: int
    request_id: str
    traceparent: str
    at: float
    decision: Decision
    prompt_tokens: int | None
    predicted_tokens: int
    prompt_blocks: int


class Refused(NamedTuple):
    """A request that the picker refused."""

    request_id: str
    traceparent: str
    at: float
    pool: str
    reason: str
    status: int
    answer: str


class FinalEntry(Protocol):
    """The proxy's log entry of a request that has ended, as far as it is told."""

    @property
    def ticket(self) -> str:
        """The picker's run and the ticket's number."""

    @property
    def served(self) -> str | None:
        """``ip:port`` of the last attempt."""

    @property
    def attempts(self) -> int:
        """Number of attempts."""

    @property
    def status(self) -> int:
        """HTTP status sent to the client; 0 = none."""

    @property
    def grpc_status(self) -> int | None:
        """Status of gRPC, if it is gRPC."""

    @property
    def cause(self) -> str:
        """Why the proxy answered by itself; empty = it did not."""

    @property
    def first_at_s(self) -> float | None:
        """Seconds from the request's start to the answer's first byte."""

    @property
    def lasted_s(self) -> float:
        """Seconds from the request's start to its end."""


class End(NamedTuple):
    """How a request ended."""

    entry: FinalEntry
    outcome: str
    """As the law of blame calls it."""
    at: float


class _Kept(NamedTuple):
    """A pick and its end."""

    picked: Picked
    end: End


class RequestRecords:
    """The records of one picker; see the module's rules.

    Args:
        life: Prefix of the tickets of this picker's run in log entries.
    """

    def __init__(self, life: str = "") -> None:
        self._life = life
        self._picks: list[Picked | None] = [None] * KEPT
        self._ends: deque[End] = deque(maxlen=KEPT)
        self._attempts: deque[tuple[int, Attempt]] = deque(maxlen=ATTEMPTS)
        self._refused: deque[Refused] = deque(maxlen=REFUSALS)
        self._failed: deque[_Kept] = deque(maxlen=FAILURES)
        self._minutes: deque[tuple[float, list[tuple[float, int, _Kept]]]] = deque(maxlen=MINUTES)
        self._minute_ends = float("-inf")
        self._floor = 0.0
        """A request that took less is not among the slowest of this minute."""

    # --- On the path of requests ----------------------------------------------------------------

    def picked(self, pick: Pick, headers: Mapping[str, str], now: float) -> None:
        """Keep a pick; one without a charge has no ticket and is not kept.

        Args:
            pick: The pick.
            headers: The request's headers.
            now: Monotonic seconds.
        """
        decision = pick.decision
        ticket = decision.ticket
        if ticket is None:
            return
        if len(decision.candidates) > MOST_PRICES:
            decision = decision.changed(candidates=(), prices=())
        self._picks[ticket.id % KEPT] = Picked(
            ticket.id,
            headers.get(REQUEST_ID_HEADER, "")[:MAX_ID],
            headers.get(TRACEPARENT, "")[:MAX_ID],
            now,
            decision,
            pick.prompt_tokens,
            pick.matched_tokens,
            pick.prompt_blocks,
        )

    def refused(self, refuse: Refuse, pool: str, headers: Mapping[str, str], now: float) -> None:
        """Keep a refusal; ``pool`` is empty where it is not known."""
        request_id = headers.get(REQUEST_ID_HEADER, "")[:MAX_ID]
        traceparent = headers.get(TRACEPARENT, "")[:MAX_ID]
        answer = refuse.body[:MAX_ANSWER].decode(errors="replace")
        self._refused.append(
            Refused(request_id, traceparent, now, pool, refuse.reason, refuse.status, answer)
        )

    def attempted(self, ticket: str, attempt: Attempt) -> None:
        """Keep a failed attempt of one of our requests."""
        number = self._number(ticket)
        if number is not None:
            self._attempts.append((number, attempt))

    def ended(self, entry: FinalEntry, outcome: str, now: float) -> None:
        """Keep how one of our requests ended.

        Args:
            entry: The proxy's entry.
            outcome: How it ended, as the law of blame calls it.
            now: Monotonic seconds.
        """
        end: End = _new(End, (entry, outcome, now))
        self._ends.append(end)
        if now >= self._minute_ends:
            self._minutes.append((now, []))
            self._minute_ends, self._floor = now + MINUTE_S, 0.0
        if outcome != GOOD or entry.lasted_s > self._floor:
            self._keep(end)

    def _keep(self, end: End) -> None:
        picked = self._of(end.entry.ticket)
        if picked is None:
            return
        kept = _Kept(picked, end)
        if end.outcome in FAILED:
            self._failed.append(kept)
        slowest = self._minutes[-1][1]
        item = (end.entry.lasted_s, picked.number, kept)
        if len(slowest) < SLOWEST:
            heappush(slowest, item)
        elif item > slowest[0]:
            heapreplace(slowest, item)
        if len(slowest) == SLOWEST:
            self._floor = slowest[0][0]

    def _number(self, ticket: str) -> int | None:
        text = ticket[len(self._life) :]
        ours = ticket.startswith(self._life) and text.isdecimal() and len(text) <= MAX_DIGITS
        return int(text) if ours else None

    def _of(self, ticket: str) -> Picked | None:
        number = self._number(ticket)
        picked = None if number is None else self._picks[number % KEPT]
        return picked if picked is not None and picked.number == number else None

    # --- For those who ask ----------------------------------------------------------------------

    def find(self, name: str, now: float) -> list[dict[str, Any]]:
        """Return the records of a request, the newest first, ready for JSON.

        Args:
            name: A request's id, or the id of a trace in hexadecimal.
            now: Monotonic seconds.
        """
        found: list[Picked | Refused] = [each for each in self._known() if _is(name, each)]
        found += [each for each in self._refused if _is(name, each)]
        several = sorted(found, key=lambda each: -each.at)[:MAX_FOUND]
        return [
            self._told(each, now) if isinstance(each, Picked) else _refusal(each, now)
            for each in several
        ]

    def since_s(self, now: float) -> float:
        """Return the age of the oldest pick that is kept in the ring, seconds; 0 = none is."""
        return max((now - each.at for each in self._picks if each is not None), default=0.0)

    def describe(self, kind: str, now: float) -> list[dict[str, Any]]:
        """Return the records of a kind, the newest first; of ``slowest`` the slowest first.

        Args:
            kind: ``refusals``, ``failures`` or ``slowest``.
            now: Monotonic seconds.
        """
        if kind == "refusals":
            return [_refusal(each, now) for each in reversed(self._refused)]
        if kind == "failures":
            return [self._told(each.picked, now, each.end) for each in reversed(self._failed)]
        slow = [
            item[2]
            for begin, items in self._minutes
            if now - begin < MINUTES * MINUTE_S
            for item in items
        ]
        slow.sort(key=lambda each: -each.end.entry.lasted_s)
        return [self._told(each.picked, now, each.end) for each in slow]

    def _known(self) -> Iterable[Picked]:
        """Return each pick that is kept, in the ring or with its end."""
        longer = [*self._failed, *(item[2] for _, items in self._minutes for item in items)]
        known = {each.picked.number: each.picked for each in longer}
        known.update((each.number, each) for each in self._picks if each is not None)
        return known.values()

    def _end_of(self, number: int) -> End | None:
        for end in self._all_ends():
            if self._number(end.entry.ticket) == number:
                return end
        return None

    def _all_ends(self) -> Iterator[End]:
        yield from reversed(self._ends)
        yield from (each.end for each in self._failed)
        yield from (item[2].end for _, items in self._minutes for item in items)

    def _told(self, picked: Picked, now: float, end: End | None = None) -> dict[str, Any]:
        decision = picked.decision
        end = end or self._end_of(picked.number)
        candidates = sorted(decision.scores, key=lambda each: each[1])
        ids = {each.address: each.key.id for each in decision.candidates}
        return {
            "request_id": picked.request_id,
            "trace_id": _trace(picked.traceparent),
            "age_s": round(now - picked.at, 3),
            "ticket": picked.number,
            "pool": decision.pool,
            "variant": decision.variant,
            "reason": decision.reason,
            "picked": None if decision.ticket is None else decision.ticket.endpoint.id,
            "addresses": list(decision.addresses),
            "fallbacks": [ids.get(each) for each in decision.addresses[1:]] if ids else None,
            "candidates": [{"id": name, "price": price} for name, price in candidates] or None,
            "prompt_tokens": picked.prompt_tokens,
            "predicted_tokens": None if picked.prompt_tokens is None else picked.predicted_tokens,
            "prompt_blocks": picked.prompt_blocks,
            "matched_blocks": decision.matched_blocks,
            "attempts": [
                {"address": each.address, "ended": str(each.ended), "status": each.status or None}
                for number, each in self._attempts
                if number == picked.number
            ],
            "end": None if end is None else _ending(end, now, ids),
            "refused": None,
        }


def _is(name: str, each: Picked | Refused) -> bool:
    return bool(name) and (each.request_id == name or _trace(each.traceparent) == name.lower())


def _trace(traceparent: str) -> str | None:
    return traceparent[_TRACE] or None


def _ending(end: End, now: float, ids: Mapping[str, str]) -> dict[str, Any]:
    entry = end.entry
    first = entry.first_at_s
    return {
        "age_s": round(now - end.at, 3),
        "outcome": str(end.outcome),
        "cause": entry.cause or None,
        "served": entry.served,
        "served_by": None if entry.served is None else ids.get(entry.served),
        "attempts": entry.attempts,
        "status": entry.status or None,
        "grpc_status": entry.grpc_status,
        "first_byte_s": None if first is None else round(first, 4),
        "lasted_s": round(entry.lasted_s, 4),
    }


def _refusal(refused: Refused, now: float) -> dict[str, Any]:
    return {
        "request_id": refused.request_id,
        "trace_id": _trace(refused.traceparent),
        "age_s": round(now - refused.at, 3),
        "pool": refused.pool or None,
        "refused": refused.reason,
        "status": refused.status,
        "answer": refused.answer,
    }
