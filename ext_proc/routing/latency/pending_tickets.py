"""Latest streamed requests, until it is known when their answers began.

Law: at most ``MAX_TICKETS`` are remembered, the oldest go first. The access log tells of a first
byte within about a second, whether the request has ended by then or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ext_proc.routing.values.ticket import Ticket

MAX_TICKETS: Final = 8_192


class PendingTickets:
    """Tickets by their ids."""

    __slots__ = ("_tickets",)

    def __init__(self) -> None:
        self._tickets: dict[int, Ticket] = {}

    def note(self, ticket: Ticket) -> None:
        """Remember a request that was just sent."""
        tickets = self._tickets
        if len(tickets) >= MAX_TICKETS:
            del tickets[next(iter(tickets))]
        tickets[ticket.id] = ticket

    def take(self, ticket_id: int) -> Ticket | None:
        """Return a request and forget it, ``None`` where it is not known (any more)."""
        return self._tickets.pop(ticket_id, None)
