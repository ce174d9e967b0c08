"""Pending first bytes of one replica, and the lateness estimated from them.

While the oldest request is pending, the time that it has waited is the evidence of slowness; after
its first byte, the time that it took is (``slowdown``). A replica that turned slow is therefore
also avoided after it has answered all its requests.

Rules:

1. Streamed requests with a prompt are noted when they are sent, with the expected seconds to their
   first byte. An answer or a normal end removes the request and all requests sent before it: the
   replica works, and the cause of their delay is their own, e.g. a slow upload. A request that is
   moved or lost removes only itself.
2. The oldest pending request is a censored observation: the replica needs at least the time that
   has passed. It counts as slowness from ``TOLERANCE`` times the expected time on.
3. A pending request counts only if first bytes of requests sent later in the same pool are known,
   so that a stalled or missing log makes no replica look slow. Time counts only up to ``HORIZON_S``
   after the latest of these was sent, so that a lagging log does not either.
4. Of a prompt whose blocks others were still computing when it was sent (``Ticket.coming``), it is
   unknown what the replica computed: what it was expected to, or those blocks, too. Pending, it
   is expected to compute all. Answered, it counts only where the answer is the same for both.
   Of the first prompts of a pool speeds are hardly known (``latency.model.UNSURE``). Pending, they
   are given much more time. Answered, they show no slowdown.
5. ``done`` is the work of requests in flight whose answers have begun: it delays no further prompt.
   It is counted only while first bytes tell speeds, for headers may come before a prompt is read.
   Ends of answers, where nothing else is known, tell it of some replicas earlier than of others,
   and prompts then gather where it is told.
6. At most the ledger's open tickets are noted, because settling removes a ticket.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from ext_proc.routing.latency.slowdown import Slowdown

if TYPE_CHECKING:
    from ext_proc.routing.latency.model import LatencyModel
    from ext_proc.routing.values.ticket import Ticket

GRACE_S: Final = 2.0
"""Allowance for the access log: it reports a first byte up to a second late, in batches, and may
lag."""
HORIZON_S: Final = 1.2
"""Seconds within which a log that does not lag reports a first byte."""
TOLERANCE: Final = 2.0
"""Multiple of the expected time below which the delay may be an error of clocks and estimates."""
MOST: Final = 20.0
"""Maximum factor that a pending request can give."""
LEAST_S: Final = 0.001
"""Minimum of the expected times."""


class PendingFirstBytes:
    """The requests of one replica that are pending their first byte, in sending order."""

    __slots__ = ("_begun", "_last", "_sent", "done", "due", "slowdown", "work")

    def __init__(self) -> None:
        self._sent: dict[int, tuple[float, float, float, float]] = {}
        """By ticket id: when it was sent, the expected time to the first byte, its work in tokens,
        and the expected time with an empty cache; times in seconds."""
        self._last = -inf
        """Latest time by which an answer had begun, monotonic seconds."""
        self.slowdown = Slowdown()
        self.due = inf
        """Time from which on ``lateness`` may be above 1, monotonic seconds."""
        self.work = 0.0
        """Uncached tokens of all pending requests."""
        self._begun: dict[int, float] = {}
        """The work of requests in flight whose answers have begun, by ticket id."""
        self.done = 0.0
        """Its sum, tokens."""

    def __len__(self) -> int:
        return len(self._sent)

    def note(self, ticket: Ticket, expected_s: float, cold_s: float) -> None:
        """Note a request that was just sent.

        Args:
            ticket: The request.
            expected_s: Expected seconds from now to its first byte.
            cold_s: Expected seconds for its prompt on an idle replica with an empty cache.
        """
        if not self._sent and not self.slowdown.known:
            self.due = ticket.at + GRACE_S + TOLERANCE * expected_s
        self._sent[ticket.id] = (ticket.at, expected_s, ticket.work, cold_s)
        self.work += ticket.work

    def began(
        self, ticket: Ticket, at: float, latency_model: LatencyModel, tokens: float | None
    ) -> None:
        """Note a first byte, and update the slowdown with it.

        Only the oldest pending request updates the slowdown: with others before it, the time at
        which the replica started on it is unknown. The known work before it is not counted.

        Args:
            ticket: The request.
            at: Time of its first byte, monotonic seconds.
            latency_model: The replica's latency model in the request's pool.
            tokens: Its uncached tokens in the scale in force; ``None`` = it shows no slowdown.
        """
        known = latency_model.expects(ticket.work) is not None
        expected_s = latency_model.expects(tokens) if tokens else None
        if tokens and expected_s is not None and next(iter(self._sent), None) == ticket.id:
            free_at = max(ticket.at + (ticket.drain_s or 0.0), self._last)
            cold_s = self._sent[ticket.id][3]
            took_s = max(at - free_at, 0.0)
            if ticket.coming:
                most = tokens * (1.0 + ticket.coming / ticket.work)
                expected_s = _judged_by(expected_s, took_s, most, latency_model)
            if expected_s is not None:
                self.slowdown.add(
                    took_s, expected_s, cold_s=cold_s, noise_s=latency_model.noise_s, at=at
                )
        self.answered(ticket.id, at, done=known)

    def answered(self, ticket_id: int, at: float, *, done: bool = False) -> None:
        """Remove a request whose answer had begun by ``at``, and all requests sent before it.

        Args:
            ticket_id: The request.
            at: Monotonic seconds.
            done: Whether their prompts count as done (rule 5).
        """
        if ticket_id not in self._sent:
            return
        for first in list(self._sent):
            work = self._sent.pop(first)[2]
            self.work -= work
            if done:
                self._begun[first] = work
                self.done += work
            if first == ticket_id:
                break
        self._update_due(at)

    def ended(self, ticket_id: int) -> None:
        """Note that a request is not in flight on the replica any more."""
        work = self._begun.pop(ticket_id, None)
        if work is not None:
            self.done = self.done - work if self._begun else 0.0

    def gone(self, ticket_id: int, at: float) -> None:
        """Remove a moved or lost request, which may have occupied the replica until ``at``."""
        sent = self._sent.pop(ticket_id, None)
        if sent is not None:
            self.work -= sent[2]
            self._update_due(at)

    def clear(self) -> None:
        """Remove all requests and the slowdown."""
        self._sent.clear()
        self._begun.clear()
        self.done = 0.0
        self.slowdown.clear()
        self._update_due(-inf)

    def _update_due(self, at: float) -> None:
        """Update the due time for the request that is now the oldest.

        Args:
            at: Time until which the replica was busy with the removed requests.
        """
        self._last = max(self._last, at)
        self.due = inf
        for sent_at, expected_s, _, _ in self._sent.values():
            self.due = sent_at + GRACE_S + TOLERANCE * expected_s
            break
        else:
            self.work = 0.0
        if self.slowdown.known:
            self.due = -inf

    def lateness(self, now: float, reported_until: float) -> float:
        """Return the factor by which the replica is slower than expected; 1 = not known to be.

        Args:
            now: Monotonic seconds.
            reported_until: When the latest request of the pool with a known first byte was sent.
        """
        return max(
            self.slowdown.factor(now),
            self._pending_factor(min(now, reported_until + HORIZON_S), reported_until),
        )

    def _pending_factor(self, known: float, reported_until: float) -> float:
        """Return the minimum factor, given that the oldest request was pending at ``known``."""
        for at, expected_s, _, _ in self._sent.values():
            if at >= reported_until or known <= at + GRACE_S + TOLERANCE * expected_s:
                break
            return min((known - at - GRACE_S) / max(expected_s, LEAST_S), MOST)
        return 1.0


def _judged_by(
    least_s: float, took_s: float, most: float, latency_model: LatencyModel
) -> float | None:
    """Return the time by which a prompt is judged, ``None`` if it depends (rule 4)."""
    if took_s <= TOLERANCE * least_s:
        return least_s
    most_s = latency_model.expects(most)
    return most_s if most_s is not None and took_s > TOLERANCE * most_s else None
