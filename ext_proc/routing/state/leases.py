"""Sequence leases: a Triton sequence stays on the replica that holds its state.

Rules:

1. A lease names one endpoint identity and one variant. It lives for its pool's idle time after
   the last request that used it, and not a moment longer: an expired lease is never returned.
2. It outlives draining (the state is there, and only there), but not its endpoint.
3. At most ``max_leases`` are kept; beyond them the least recently used one goes, counted in
   ``evicted``. Its sequence is then routed afresh, and Triton answers the missing start itself.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.routing.values.request import SequenceKey

MAX_LEASES: Final = 100_000


class Lease(NamedTuple):
    """Where a sequence lives."""

    endpoint: EndpointKey
    variant: str
    expires: float
    """Monotonic seconds."""


class LeaseKey(NamedTuple):
    """Sequences of different pools never meet."""

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
        max_leases: Most leases kept.
    """

    def __init__(self, max_leases: int = MAX_LEASES) -> None:
        self._max_leases = max_leases
        self._leases: OrderedDict[LeaseKey, Lease] = OrderedDict()
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
        """Return the lease of a sequence, ``None`` where it has none or it has expired."""
        lease = self._leases.get(key)
        if lease is not None and lease.expires <= now:
            del self._leases[key]
            return None
        return lease

    def keep(self, key: LeaseKey, lease: Lease, now: float) -> None:
        """Grant or prolong a lease; it becomes the most recently used one."""
        leases = self._leases
        leases[key] = lease
        leases.move_to_end(key)
        # At most two leave for one that comes, so expired ones drain without a long pause.
        for _ in range(2):
            oldest, candidate = next(iter(leases.items()))
            if candidate.expires <= now:
                del leases[oldest]
            elif len(leases) > self._max_leases:
                del leases[oldest]
                self.evicted += 1
            else:
                return
            if not leases:
                return

    def release(self, key: LeaseKey) -> bool:
        """End a lease; tell whether there was one."""
        return self._leases.pop(key, None) is not None

    def drop_endpoint(self, endpoint: EndpointKey) -> int:
        """End all leases on an endpoint, whose state is gone; return how many."""
        gone = [key for key, lease in self._leases.items() if lease.endpoint == endpoint]
        for key in gone:
            del self._leases[key]
        return len(gone)
