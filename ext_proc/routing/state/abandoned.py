"""Abandoned work: what a replica computes after its caller left, and its charge. Pure.

A caller that leaves, or a timeout of the proxy's, ends a request for the ledger. Triton goes on: of
unary inferences (HTTP ``infer`` and ``generate``, gRPC ``ModelInfer``) neither a running nor a
queued one stops, streams stop within 0.1 s where their model asks whether it was cancelled (2.51).
OpenAI's servers stop.

Rules:

1. The tickets of unary KServe inferences are kept after their end (``blame.origins``).
2. If such a request was given to a replica whole and then abandoned, a charge of the same work is
   added there: Triton begins nothing on a part of a body. It ends when the work can have ended:
   after the replica's mean duration of such requests less the time that has passed, or, where this
   is over or unknown, after the time that has passed once more; after ``MAX_S`` in any case.
3. At most ``MAX_CHARGES`` charges are open. Beyond that, work is abandoned without a charge.
4. The charges of a replica end when it is removed or its process was restarted.
5. They are charges in the ledger like others, but no reason to expect answers: ``waited`` counts
   them, so that a replica with only such work is not taken for frozen.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.ticket import Outcome, Ticket

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.state.candidates import Replica
    from ext_proc.routing.state.ledger import Ledger
    from ext_proc.routing.values.pool import EndpointKey

MAX_CHARGES: Final = 4096
MAX_S: Final = 60.0
"""Longest charge, seconds."""


class Abandoned:
    """Charges for abandoned work; see the module's rules.

    Args:
        ledger: Takes the charges.
        members: Live view of the registered replicas.
    """

    def __init__(self, ledger: Ledger, members: Mapping[EndpointKey, Replica]) -> None:
        self._ledger = ledger
        self._members = members
        self._ends: list[tuple[float, int]] = []
        """When each open charge ends, and its ticket: a heap."""
        self._last = 0
        self.waited: Counter[EndpointKey] = Counter()
        """Open charges by replica."""
        self.charged = 0
        """Charges so far."""
        self.uncharged = 0
        """Abandoned work that was not charged, at the bound (rule 3)."""

    def __len__(self) -> int:
        return len(self._ends)

    def left(self, ticket: Ticket, endpoint: EndpointKey, since: float, now: float) -> None:
        """Charge a replica for a request that it has read and whose caller has gone.

        Args:
            ticket: The request's ticket, whose work goes on.
            endpoint: The replica that goes on.
            since: When it had the whole request, monotonic seconds.
            now: Monotonic seconds.
        """
        replica = self._members.get(endpoint)
        if replica is None:
            return
        if len(self._ends) >= MAX_CHARGES:
            self.uncharged += 1
            return
        model = replica.latency_models.get(ticket.pool)
        passed = max(now - since, 0.0)
        usual = None if model is None else model.latency_s
        left = passed if usual is None or usual <= passed else usual - passed
        # Other tickets have positive numbers.
        self._last -= 1
        charge = Ticket(self._last, endpoint, ticket.pool, ticket.work, now, model=ticket.model)
        if not self._ledger.charge(charge):
            self.uncharged += 1
            return
        self.charged += 1
        self.waited[endpoint] += 1
        heapq.heappush(self._ends, (now + min(left, MAX_S), charge.id))

    def sweep(self, now: float) -> None:
        """End the charges whose work can have ended; call about once a second."""
        while self._ends and self._ends[0][0] <= now:
            self._end(heapq.heappop(self._ends)[1])

    def drop(self, endpoint: EndpointKey) -> None:
        """End the charges of a replica that was removed or restarted."""
        if not self.waited[endpoint]:
            del self.waited[endpoint]
            return
        kept = []
        for end in self._ends:
            ticket = self._ledger.ticket(end[1])
            if ticket is not None and ticket.endpoint == endpoint:
                self._end(end[1])
            elif ticket is not None:
                kept.append(end)
        heapq.heapify(kept)
        self._ends = kept
        del self.waited[endpoint]

    def describe(self) -> dict[str, int]:
        """Return the counters, ready for JSON."""
        return {"open": len(self._ends), "charged": self.charged, "uncharged": self.uncharged}

    def _end(self, number: int) -> None:
        ticket = self._ledger.ticket(number)
        if ticket is None:
            return
        self.waited[ticket.endpoint] -= 1
        self._ledger.settle(number, Outcome.ABANDONED)
