"""Requests of one replica that are not answered yet, and what their silence says of its speed.

While the first of them is not heard of, its silence tells; once it is, when it was answered does
(``slowdown``). So a replica that turned slow is not asked again as if nothing had been each time it
has answered what it had.

Rules:

1. Streamed requests with a prompt are noted when they are sent, with the seconds in which their
   answer was expected to begin. Who is answered or ends as it should takes out all that were sent
   before it: the replica works, and what holds those up is their own, e.g. a slow upload. Who moves
   or is lost takes out itself only.
2. What was sent first and is not heard of is an observation that is not over: the replica needs at
   least as long as it has needed by now. It counts as slowness from ``TOLERANCE`` times of what was
   expected on.
3. Silence is held against a replica only where requests of its pool that were sent later have been
   heard of, so that a log which stands still or is missing slows down nobody; and no longer than up
   to ``HORIZON_S`` after the latest of these was sent, so that neither does a log that lags.
4. At most the ledger's open tickets are noted: a settled one is out.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from ext_proc.routing.latency.slowdown import Slowdown

if TYPE_CHECKING:
    from ext_proc.routing.latency.model import LatencyModel
    from ext_proc.routing.values.ticket import Ticket

GRACE_S: Final = 2.0
"""The access log tells of a first byte up to a second later, comes in batches, and may lag."""
HORIZON_S: Final = 1.2
"""In which a log that does not lag tells of a first byte."""
TOLERANCE: Final = 2.0
"""Clocks and estimates err; from here on it is the replica."""
MOST: Final = 20.0
"""Nobody is held for slower by his silence."""
LEAST_S: Final = 0.001
"""Expected times below this one count as this."""


class PendingFirstBytes:
    """The unanswered requests of one replica, in the order in which they were sent."""

    __slots__ = ("_last", "_sent", "due", "slowdown", "work")

    def __init__(self) -> None:
        self._sent: dict[int, tuple[float, float, float, float]] = {}
        """By ticket: when it was sent, what was expected (both seconds), its work, and the seconds
        that its whole prompt takes."""
        self._last = -inf
        """By when the latest of its answers had begun, monotonic seconds."""
        self.slowdown = Slowdown()
        self.due = inf
        """From when on ``lateness`` may be above 1, monotonic seconds."""
        self.work = 0.0
        """Uncached tokens of all of them."""

    def __len__(self) -> int:
        return len(self._sent)

    def note(self, ticket: Ticket, expected_s: float, cold_s: float) -> None:
        """Note a request that was just sent.

        Args:
            ticket: The request.
            expected_s: Seconds from now to its first byte.
            cold_s: Seconds that its prompt takes with nothing in the cache and nobody before it.
        """
        if not self._sent and not self.slowdown.known:
            self.due = ticket.at + GRACE_S + TOLERANCE * expected_s
        self._sent[ticket.id] = (ticket.at, expected_s, ticket.work, cold_s)
        self.work += ticket.work

    def began(self, ticket: Ticket, at: float, latency_model: LatencyModel) -> None:
        """Note when an answer began, and learn from it whether the replica has become slow.

        Only the first of those that are awaited teaches: with others before it nobody knows when
        its turn came. Nor does it teach of time that others were known to need.

        Args:
            ticket: The request.
            at: When its answer began, monotonic seconds.
            latency_model: The replica's, in the request's pool.
        """
        expected_s = latency_model.expects(ticket.work)
        if expected_s is not None and next(iter(self._sent), None) == ticket.id:
            free_at = max(ticket.at + (ticket.drain_s or 0.0), self._last)
            cold_s = self._sent[ticket.id][3]
            took_s = max(at - free_at, 0.0)
            self.slowdown.add(
                took_s, expected_s, cold_s=cold_s, noise_s=latency_model.noise_s, at=at
            )
        self.answered(ticket.id, at)

    def answered(self, ticket_id: int, at: float) -> None:
        """Forget a request whose answer had begun by then, and all that were sent before it."""
        if ticket_id not in self._sent:
            return
        for first in list(self._sent):
            self.work -= self._sent.pop(first)[2]
            if first == ticket_id:
                break
        self._look(at)

    def gone(self, ticket_id: int, at: float) -> None:
        """Forget a request that moved or was lost, and may have been worked on until then."""
        sent = self._sent.pop(ticket_id, None)
        if sent is not None:
            self.work -= sent[2]
            self._look(at)

    def clear(self) -> None:
        """Forget all."""
        self._sent.clear()
        self.slowdown.clear()
        self._look(-inf)

    def _look(self, at: float) -> None:
        """Look who is the first now, after an answer had begun or could have begun."""
        self._last = max(self._last, at)
        self.due = inf
        for sent_at, expected_s, _, _ in self._sent.values():
            self.due = sent_at + GRACE_S + TOLERANCE * expected_s
            break
        else:
            self.work = 0.0
        if self.slowdown.known:
            self.due = -inf

    def lateness(self, now: float, heard_to: float) -> float:
        """Return how many times slower than thought the replica is; 1 = nothing is known.

        Args:
            now: Monotonic seconds.
            heard_to: When the latest request was sent that was heard of in the pool.
        """
        return max(
            self.slowdown.factor(now), self._silence(min(now, heard_to + HORIZON_S), heard_to)
        )

    def _silence(self, known: float, heard_to: float) -> float:
        """Return how many times slower it is at least, as it did not answer up to some moment."""
        for at, expected_s, _, _ in self._sent.values():
            if at >= heard_to or known <= at + GRACE_S + TOLERANCE * expected_s:
                break
            return min((known - at - GRACE_S) / max(expected_s, LEAST_S), MOST)
        return 1.0
