"""Starts of sequences whose replica may still change, because the first one was never reached.

Rules:

1. Only the first request of a sequence may go to another replica, and only while no replica has
   read it. Later requests have one address: the state is on one replica.
2. The lease follows the request: to the next address of its list when a connection was refused,
   and to the replica that served when that is known. Of a lease that was released or granted anew
   meanwhile nothing changes.
3. At most ``max_starts`` are kept, and the oldest are dropped first: their leases stay where they
   are. Reports arrive a fraction of a second after the request, so this is rare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.leases import Lease, LeaseKey, Leases
    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.routing.values.ticket import Ticket

MAX_STARTS: Final = 4096


class SequenceStarts:
    """The first requests of sequences, by ticket id.

    Args:
        leases: The leases of the sequences.
        at: Returns the endpoint of a pool at an ``ip:port``, ``None`` if there is none.
        grant: Replaces a lease; called with its key, the lease, and monotonic seconds.
        max_starts: Maximum number of starts kept.
    """

    def __init__(
        self,
        leases: Leases,
        at: Callable[[str, str], EndpointKey | None],
        grant: Callable[[LeaseKey, Lease | None, float], None],
        max_starts: int = MAX_STARTS,
    ) -> None:
        self._leases = leases
        self._at = at
        self._grant = grant
        self._max_starts = max_starts
        self._starts: dict[int, tuple[LeaseKey, EndpointKey, tuple[str, ...]]] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def note(self, ticket: Ticket | None, key: LeaseKey, addresses: tuple[str, ...]) -> None:
        """Keep the first request of a sequence, unless it has no ticket.

        Also one with a single address: the proxy goes on with replicas that are not in its list.

        Args:
            ticket: Its ticket, at the replica that has the lease.
            key: Key of the sequence's lease.
            addresses: The pick and its fallbacks, ``ip:port``.
        """
        if ticket is None:
            return
        starts = self._starts
        starts[ticket.id] = key, ticket.endpoint, addresses
        if len(starts) > self._max_starts:
            del starts[next(iter(starts))]

    def unreached(self, ticket_id: int, address: str, now: float) -> None:
        """Move the lease to the next address, as the proxy does with the request.

        Args:
            ticket_id: Ticket of the request.
            address: ``ip:port`` to which no connection could be made.
            now: Monotonic seconds.
        """
        known = self._starts.get(ticket_id)
        if known is None or address not in known[2]:
            return
        key, _, addresses = known
        following = addresses.index(address) + 1
        if following < len(addresses):
            endpoint = self._at(key.pool, addresses[following])
            if endpoint is not None:
                self.served(ticket_id, endpoint, now)

    def served(self, ticket_id: int, endpoint: EndpointKey, now: float) -> None:
        """Move the lease to the replica that has the request."""
        known = self._starts.get(ticket_id)
        if known is None or known[1] == endpoint:
            return
        key, before, addresses = known
        lease = self._leases.find(key, now)
        if lease is None or lease.endpoint != before:
            del self._starts[ticket_id]
            return
        self._starts[ticket_id] = key, endpoint, addresses
        self._grant(key, lease._replace(endpoint=endpoint), now)
