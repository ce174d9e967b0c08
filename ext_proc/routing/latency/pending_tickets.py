"""Tickets of the latest streamed requests, kept until their first byte is reported.

Rule: at most ``MAX_TICKETS`` are kept, and the oldest are dropped first. The access log reports a
first byte within about a second, whether the request has ended by then or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ext_proc.routing.values.ticket import Ticket

MAX_TICKETS: Final = 8_192


class PendingTickets:
    """Tickets by id."""

    __slots__ = ("_tickets",)

    def __init__(self) -> None:
        self._tickets: dict[int, Ticket] = {}

    def note(self, ticket: Ticket) -> None:
        """Keep the ticket of a request that was just sent."""
        tickets = self._tickets
        if len(tickets) >= MAX_TICKETS:
            del tickets[next(iter(tickets))]
        tickets[ticket.id] = ticket

    def take(self, ticket_id: int) -> Ticket | None:
        """Remove and return a ticket, ``None`` if it was never kept or was dropped."""
        return self._tickets.pop(ticket_id, None)
