"""What sibling workers did, on the same loads, clocks, index and leases as our own deeds.

Several routers on one machine that hear each other's events decide almost as one would: a
replica's load is what all of them sent it. What is ours stays apart, for reports and settling.

Rules:

1. A sibling's ticket counts from its ``Charged`` to its ``Settled``, once. ``lost`` ends all open
   tickets of a sibling at once: what it had in flight is nobody's any more.
2. An event about an endpoint that is no member here changes nothing; nor does the settle of a
   ticket that is not open.
3. At most ``MAX_TICKETS`` tickets of siblings are open; a charge beyond them is not counted.
4. What a sibling's request taught is learned here too, so that paces agree.
5. Following makes no events: nobody hears of a deed twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ext_proc.routing.leases import Leased, Released
from ext_proc.routing.ledger import MAX_TICKETS, Charged, Settled
from ext_proc.routing.prefix_index import Inserted
from ext_proc.routing.types import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.routing.conditions import Conditions
    from ext_proc.routing.exact_index import IndexEvent
    from ext_proc.routing.leases import LeaseEvent, Leases
    from ext_proc.routing.ledger import Ledger, LedgerEvent
    from ext_proc.routing.prefix_index import PrefixIndex
    from ext_proc.routing.roster import Replica
    from ext_proc.routing.types import EndpointKey, Ticket

    Event: TypeAlias = LedgerEvent | IndexEvent | LeaseEvent


class Siblings:
    """Follows the other workers of this machine.

    Args:
        ledger: Whose loads they share.
        index: Whose blocks they add to.
        leases: Where sequences live.
        conditions: Hears of their picks.
        replicas: The members.
        per_token: Returns the seconds of prefill per token of a ticket's replica and pool.
        teach: Takes note of how long a ticket that ended well took, given its end.
        max_tickets: Bound of open tickets, all siblings together.
    """

    def __init__(
        self,
        ledger: Ledger,
        index: PrefixIndex,
        leases: Leases,
        conditions: Conditions,
        replicas: Mapping[EndpointKey, Replica],
        per_token: Callable[[Ticket], float],
        teach: Callable[[Ticket, float], None],
        *,
        max_tickets: int = MAX_TICKETS,
    ) -> None:
        self._ledger = ledger
        self._index = index
        self._leases = leases
        self._conditions = conditions
        self._replicas = replicas
        self._per_token = per_token
        self._teach = teach
        self._max_tickets = max_tickets
        self._open: dict[int, dict[int, Ticket]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<Siblings {sorted(self._open)} open={self._count}>"

    def open_by(self) -> dict[int, int]:
        """Return the open tickets of each sibling that has any."""
        return {sibling: len(tickets) for sibling, tickets in self._open.items() if tickets}

    def follow(self, sibling: int, event: Event, now: float) -> None:
        """Fold one event of a sibling.

        Args:
            sibling: Its number.
            event: A charge, settle, insert or lease; other events are each worker's own matter.
            now: When it happened, monotonic seconds.
        """
        if isinstance(event, Charged):
            self._charge(sibling, event.ticket, now)
        elif isinstance(event, Settled):
            self._settle(sibling, event.ticket_id, event.outcome, now)
        elif isinstance(event, Inserted):
            if event.endpoint in self._replicas:
                self._index.insert(event.endpoint, event.blocks, now)
        elif isinstance(event, Leased):
            self._lease(event, now)
        elif isinstance(event, Released):
            self._leases.release(event.key)

    def lost(self, sibling: int) -> int:
        """End all open tickets of a sibling whose state is unknown now; return how many."""
        tickets = self._open.pop(sibling, {})
        for ticket in tickets.values():
            self._ledger.drop(ticket.endpoint, ticket.work)
        self._count -= len(tickets)
        return len(tickets)

    def removed(self, key: EndpointKey) -> None:
        """End all open tickets on an endpoint that left."""
        for tickets in self._open.values():
            for number in [each.id for each in tickets.values() if each.endpoint == key]:
                del tickets[number]
                self._count -= 1

    def _charge(self, sibling: int, ticket: Ticket, now: float) -> None:
        replica = self._replicas.get(ticket.endpoint)
        tickets = self._open.setdefault(sibling, {})
        if replica is None or ticket.id in tickets or self._count >= self._max_tickets:
            return
        if ticket.prompted and ticket.drain_s is not None:
            per_token = self._per_token(ticket)
            replica.busy_until = now + replica.drain_s(now, per_token) + ticket.work * per_token
        tickets[ticket.id] = ticket
        self._count += 1
        self._ledger.add(ticket.endpoint, ticket.work)
        self._conditions.picked(ticket.pool, ticket.endpoint, now)

    def _settle(self, sibling: int, number: int, outcome: Outcome, now: float) -> None:
        ticket = self._open.get(sibling, {}).pop(number, None)
        if ticket is None:
            return
        self._count -= 1
        self._ledger.drop(ticket.endpoint, ticket.work)
        if outcome is Outcome.DONE:
            self._teach(ticket, now)

    def _lease(self, event: Leased, now: float) -> None:
        key, lease = event.key, event.lease
        known = self._leases.find(key, now)
        if lease.endpoint in self._replicas and (known is None or known.expires <= lease.expires):
            self._leases.keep(key, lease, now)
