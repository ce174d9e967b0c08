"""Requests of one replica that are not answered yet, and what their silence says of its speed.

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

if TYPE_CHECKING:
    from ext_proc.routing.types import Ticket

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


class Awaited:
    """The unanswered requests of one replica, in the order in which they were sent."""

    __slots__ = ("_sent", "due", "work")

    def __init__(self) -> None:
        self._sent: dict[int, tuple[float, float, float]] = {}
        """By ticket: when it was sent, what was expected (both seconds), and its work."""
        self.due = inf
        """When the first one begins to be late, monotonic seconds."""
        self.work = 0.0
        """Uncached tokens of all of them."""

    def __len__(self) -> int:
        return len(self._sent)

    def note(self, ticket: Ticket, expected_s: float) -> None:
        """Note a request that was just sent.

        Args:
            ticket: The request.
            expected_s: Seconds from now to its first byte.
        """
        if not self._sent:
            self.due = ticket.at + GRACE_S + TOLERANCE * expected_s
        self._sent[ticket.id] = (ticket.at, expected_s, ticket.work)
        self.work += ticket.work

    def answered(self, ticket_id: int) -> None:
        """Forget a request that was answered, and all that were sent before it."""
        if ticket_id not in self._sent:
            return
        for first in list(self._sent):
            self.work -= self._sent.pop(first)[2]
            if first == ticket_id:
                break
        self._look()

    def gone(self, ticket_id: int) -> None:
        """Forget a request that moved or was lost."""
        sent = self._sent.pop(ticket_id, None)
        if sent is not None:
            self.work -= sent[2]
            self._look()

    def clear(self) -> None:
        """Forget all."""
        self._sent.clear()
        self._look()

    def _look(self) -> None:
        """Look who is the first now."""
        for at, expected_s, _ in self._sent.values():
            self.due = at + GRACE_S + TOLERANCE * expected_s
            return
        self.due, self.work = inf, 0.0

    def lateness(self, now: float, heard_to: float) -> float:
        """Return how many times slower than thought the replica is at least; 1 = nothing is known.

        Args:
            now: Monotonic seconds.
            heard_to: When the latest request was sent that was heard of in the pool.
        """
        known = min(now, heard_to + HORIZON_S)
        if known <= self.due:
            return 1.0
        for at, expected_s, _ in self._sent.values():
            if at >= heard_to:
                break
            return min((known - at - GRACE_S) / max(expected_s, LEAST_S), MOST)
        return 1.0
