"""Tickets of requests that are pending their first byte."""

from __future__ import annotations

from ext_proc.routing.latency.pending_tickets import MAX_TICKETS, PendingTickets
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.ticket import Ticket


def test_a_ticket_is_taken_once() -> None:
    """A second take, or one of an unknown ticket, returns None."""
    known = PendingTickets()
    ticket = Ticket(7, EndpointKey("a", 1), "llm", 100.0, 0.0)
    known.note(ticket)
    assert known.take(8) is None
    assert known.take(7) is ticket
    assert known.take(7) is None


def test_it_is_bounded() -> None:
    """Beyond the bound the oldest are dropped."""
    known = PendingTickets()
    for number in range(MAX_TICKETS + 2):
        known.note(Ticket(number, EndpointKey("a", 1), "llm", 100.0, 0.0))
    assert [known.take(number) is None for number in (0, 1, 2)] == [True, True, False]
