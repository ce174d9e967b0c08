"""Sequence leases: keep a Triton sequence on the replica that holds its state.

Rules:

1. A lease names one endpoint identity and one variant. It expires when its pool's idle time has
   passed since the last request that used it; an expired lease is never returned.
2. It is kept while its endpoint drains, because only that replica holds the state, and is dropped
   when the endpoint is removed.
3. At most ``max_leases`` are kept; beyond that the least recently used one is evicted and counted
   in ``evicted``. Its sequence is then routed afresh, and Triton reports the missing start itself.
4. Leases are counted by endpoint, so that one without any costs nothing to ask for.
5. In a group of pickers one, its owner, places each new sequence.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.routing.values.proposal import PlacedAs, Proposal
    from ext_proc.routing.values.request import SequenceKey

    Told = Callable[[PlacedAs, float, float], None]
    """Called with what became of a proposal, monotonic and Unix seconds."""

MAX_LEASES: Final = 100_000


class Lease(NamedTuple):
    """The replica that holds the state of a sequence."""

    endpoint: EndpointKey
    variant: str
    expires: float
    """Monotonic seconds."""


class LeaseKey(NamedTuple):
    """Identity of a sequence within its pool; equal ids in different pools are different."""

    pool: str
    sequence: SequenceKey


class Leased(NamedTuple):
    """A lease was granted or prolonged."""

    key: LeaseKey
    lease: Lease


class Released(NamedTuple):
    """A lease was ended by its sequence."""

    key: LeaseKey


LeaseEvent = Leased | Released


class Leases:
    """The live leases of this picker.

    Args:
        max_leases: Maximum number of leases kept.
    """

    def __init__(self, max_leases: int = MAX_LEASES) -> None:
        self._max_leases = max_leases
        self._leases: OrderedDict[LeaseKey, Lease] = OrderedDict()
        self._on: dict[EndpointKey, int] = {}
        """Leases by endpoint, expired ones included; an endpoint without any is absent."""
        self.evicted = 0
        """Live leases dropped at the bound (rule 3)."""

    def __len__(self) -> int:
        return len(self._leases)

    def __repr__(self) -> str:
        return f"<Leases {len(self._leases)}/{self._max_leases}>"

    def items(self) -> Iterable[tuple[LeaseKey, Lease]]:
        """Return all leases, the least recently used first; some may have expired."""
        return self._leases.items()

    def find(self, key: LeaseKey, now: float) -> Lease | None:
        """Return the lease of a sequence, ``None`` if it has none or it has expired."""
        lease = self._leases.get(key)
        if lease is not None and lease.expires <= now:
            self._drop(key)
            return None
        return lease

    def keep(self, key: LeaseKey, lease: Lease, now: float) -> None:
        """Grant or prolong a lease; it becomes the most recently used one."""
        leases = self._leases
        known = leases.get(key)
        if known is None or known.endpoint != lease.endpoint:
            if known is not None:
                self._drop(key)
            self._on[lease.endpoint] = self._on.get(lease.endpoint, 0) + 1
        leases[key] = lease
        leases.move_to_end(key)
        # At most two leases are dropped per call, so expired ones drain without a long pause.
        for _ in range(2):
            oldest, candidate = next(iter(leases.items()))
            if candidate.expires <= now:
                self._drop(oldest)
            elif len(leases) > self._max_leases:
                self._drop(oldest)
                self.evicted += 1
            else:
                return
            if not leases:
                return

    def release(self, key: LeaseKey) -> bool:
        """End a lease; return whether there was one."""
        known = key in self._leases
        if known:
            self._drop(key)
        return known

    def drop_endpoint(self, endpoint: EndpointKey) -> int:
        """End all leases on an endpoint that lost its state; return their number."""
        gone = [key for key, lease in self._leases.items() if lease.endpoint == endpoint]
        for key in gone:
            self._drop(key)
        return len(gone)

    def endpoints(self) -> Collection[EndpointKey]:
        """Return the endpoints with leases, of which all may have expired."""
        return self._on.keys()

    def open_on(self, endpoint: EndpointKey, now: float) -> int:
        """Return the number of live leases on an endpoint; expired ones are dropped."""
        if endpoint not in self._on:
            return 0
        here = [(key, each) for key, each in self._leases.items() if each.endpoint == endpoint]
        for key, each in here:
            if each.expires <= now:
                self._drop(key)
        return self._on.get(endpoint, 0)

    def _drop(self, key: LeaseKey) -> None:
        endpoint = self._leases.pop(key).endpoint
        left = self._on[endpoint] - 1
        if left:
            self._on[endpoint] = left
        else:
            del self._on[endpoint]


PLACED_S: Final = 1.0
"""Longest wait for the owner, seconds."""


class SequenceOwners(Protocol):
    """What a router asks of the group; ``ext_proc.workers.group.owners`` implements it."""

    def places(self, key: LeaseKey) -> bool:
        """Return whether this picker may place a new sequence without a question."""

    def unsure(self, key: LeaseKey) -> bool:
        """Return whether too few of the group may hold the lease of a sequence, to use it."""

    def ask(self, proposal: Proposal, told: Told, latest: float) -> Callable[[], None]:
        """Ask the owner for a lease, until ``latest``; return what takes the question back."""
