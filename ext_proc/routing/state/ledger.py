"""The ledger: the requests that this picker has in flight on each endpoint.

Rules:

1. The state is the fold of events. ``apply`` (and its short cuts ``charge`` and ``settle``) is the
   only way to change it, so replaying the same events gives the same ledger.
2. A ticket settles exactly once. A second settle, or one of an unknown ticket, returns False,
   changes nothing and is counted in ``unmatched``.
3. Removing an endpoint settles all of its tickets as ``REMOVED``; their later settles fall
   under rule 2.
4. Requests and work of an endpoint are never negative, and both are exactly 0 when its last
   ticket settles: no rounding error is carried from one busy period to the next.
5. At most ``max_tickets`` tickets are open. A charge beyond that is refused and counted in
   ``overflowed``; the request is then routed without being counted.
6. A load also includes the requests of peer workers (``shift``, see ``peers``): they are part of
   ``in_flight`` and ``work``, and ``others`` counts them separately.
7. What counts against limits (``Ticket.model``) is also counted by model. A model without requests
   has no entry, so there are at most as many as open tickets.
8. ``on_event`` is called with each event that changed something, ``shift`` apart. A removed
   endpoint is one event, which stands for the ends of its tickets.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.values.ticket import Outcome, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ext_proc.routing.values.pool import EndpointKey

MAX_TICKETS: Final = 200_000


class Charged(NamedTuple):
    """A request was sent to an endpoint."""

    ticket: Ticket


class Settled(NamedTuple):
    """A request ended."""

    ticket_id: int
    outcome: Outcome


class EndpointRemoved(NamedTuple):
    """An endpoint was removed; if it is added again, it has a new incarnation."""

    key: EndpointKey


LedgerEvent = Charged | Settled | EndpointRemoved


class Load:
    """Load of one endpoint: a live view that only the ledger changes."""

    __slots__ = ("by_model", "in_flight", "limited", "others", "work")

    def __init__(self) -> None:
        self.in_flight = 0
        """Requests in flight."""
        self.others = 0
        """How many of them were sent by peer workers."""
        self.work = 0.0
        """Estimated uncached input tokens of these requests."""
        self.limited = 0
        """How many of them count against limits."""
        self.by_model: dict[str, int] = {}
        """These by model; empty = not known."""

    def count(self, model: str, requests: int) -> None:
        """Add requests that count against limits; a negative number subtracts."""
        self.limited += requests
        left = self.by_model.get(model, 0) + requests
        if left:
            self.by_model[model] = left
        else:
            self.by_model.pop(model, None)

    def __repr__(self) -> str:
        return f"<Load in_flight={self.in_flight} work={self.work:g}>"


class Ledger:
    """Requests and work in flight per endpoint identity.

    Args:
        max_tickets: Maximum number of tickets open at one time.
        on_event: Called with each change; ``None`` = no events are made.
    """

    def __init__(
        self,
        max_tickets: int = MAX_TICKETS,
        on_event: Callable[[LedgerEvent], None] | None = None,
    ) -> None:
        self._max_tickets = max_tickets
        self.on_event = on_event
        self._open: dict[int, Ticket] = {}
        self._loads: dict[EndpointKey, Load] = {}
        self.outcomes: Counter[Outcome] = Counter()
        """Settled tickets by outcome."""
        self.unmatched = 0
        """Settles of tickets that are not open (rule 2)."""
        self.overflowed = 0
        """Charges refused at the bound (rule 5)."""

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._open.values())

    def __repr__(self) -> str:
        return f"<Ledger open={len(self._open)} endpoints={len(self._loads)}>"

    def load(self, key: EndpointKey) -> Load:
        """Return the live load of an endpoint.

        The object stays valid until the endpoint is removed, so hot paths may keep it.
        """
        load = self._loads.get(key)
        if load is None:
            load = self._loads[key] = Load()
        return load

    def ticket(self, ticket_id: int) -> Ticket | None:
        """Return an open ticket, ``None`` if none has this id."""
        return self._open.get(ticket_id)

    def loads(self) -> Iterable[tuple[EndpointKey, Load]]:
        """Return each known endpoint with its load."""
        return self._loads.items()

    def apply(self, event: LedgerEvent) -> bool:
        """Apply one event.

        Returns:
            Whether anything changed; False for a charge at the bound or of a ticket that is open
            already, for a settle of a ticket that is not open, and for an unknown endpoint.
        """
        if isinstance(event, Charged):
            return self.charge(event.ticket)
        if isinstance(event, Settled):
            return self.settle(event.ticket_id, event.outcome)
        return self._remove(event.key)

    def charge(self, ticket: Ticket) -> bool:
        """Apply a ``Charged``; the event is only made for a follower, for the hot path."""
        if ticket.id in self._open:
            return False
        if len(self._open) >= self._max_tickets:
            self.overflowed += 1
            return False
        self._open[ticket.id] = ticket
        load = self._loads.get(ticket.endpoint) or self.load(ticket.endpoint)
        load.in_flight += 1
        load.work += ticket.work
        model = ticket.model
        if model is not None:  # ``count`` in place, as in ``settle``: each request costs a call
            load.limited += 1
            by_model = load.by_model
            by_model[model] = by_model.get(model, 0) + 1
        if self.on_event is not None:
            self.on_event(Charged(ticket))
        return True

    def settle(self, ticket_id: int, outcome: Outcome) -> bool:
        """Apply a ``Settled``, likewise."""
        ticket = self._open.pop(ticket_id, None)
        if ticket is None:
            self.unmatched += 1
            return False
        load = self._loads[ticket.endpoint]
        load.in_flight -= 1
        load.work = max(load.work - ticket.work, 0.0) if load.in_flight else 0.0
        model = ticket.model
        if model is not None:
            load.limited -= 1
            by_model = load.by_model
            left = by_model.get(model, 0) - 1
            if left:
                by_model[model] = left
            else:
                del by_model[model]
        self.outcomes[outcome] += 1
        if self.on_event is not None:
            self.on_event(Settled(ticket_id, outcome))
        return True

    def shift(self, key: EndpointKey, requests: int, work: float, model: str | None = None) -> None:
        """Add requests and work of peer workers to an endpoint's load; negative values subtract."""
        load = self.load(key)
        if model is not None and requests:
            load.count(model, requests)
        load.others += requests
        load.in_flight += requests
        load.work = max(load.work + work, 0.0) if load.in_flight else 0.0

    def _remove(self, key: EndpointKey) -> bool:
        load = self._loads.get(key)
        if load is None:
            return False
        on_event, self.on_event = self.on_event, None
        if load.in_flight:
            for ticket in [each for each in self._open.values() if each.endpoint == key]:
                self.settle(ticket.id, Outcome.REMOVED)
        self.on_event = on_event
        del self._loads[key]
        if on_event is not None:
            on_event(EndpointRemoved(key))
        return True
