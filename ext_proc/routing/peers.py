"""What peer worker workers did, on the same loads, clocks, index and leases as our own deeds.

Several routers on one machine that hear each other decide almost as one would: a replica's load
is what all of them sent it. What is ours stays apart, for reports and settling.

Rules:

1. What a peer worker has in flight on a replica is what its last ``Share`` says, whatever it said
   before: one that is not heard does no lasting harm. ``lost`` ends all of a peer worker at once:
       what
   it had in flight is nobody's any more.
2. Words about an endpoint that is no member here change nothing.
3. Nothing is kept per request: one share for each pool's replica of a peer worker.
4. What a peer worker's request taught is learned here too, so that latency models agree
   (``LatencySample``).
5. Following makes no events: nobody hears of a deed twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ext_proc.routing.cache.prefix_index import Inserted
from ext_proc.routing.state.leases import Leased, Released

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ext_proc.routing.cache.prefix_index import PrefixIndex
    from ext_proc.routing.health.conditions import Conditions
    from ext_proc.routing.state.leases import Lease, LeaseEvent, LeaseKey, Leases
    from ext_proc.routing.state.ledger import Ledger
    from ext_proc.routing.state.replica import Replica
    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.routing.values.ticket import Ticket

    ReplicationEvent: TypeAlias = "Share | LatencySample | Inserted | LeaseEvent"
    """What is followed."""


class Share(NamedTuple):
    """What one worker has in flight on a replica for a pool."""

    pool: str
    endpoint: EndpointKey
    in_flight: int
    """Requests."""
    work: float
    """Estimated uncached input tokens of these requests."""
    charges: int
    """Requests since the worker began."""
    prefilled: float
    """Work of all prompts since the worker began: what has moved the virtual clock."""


class LatencySample(NamedTuple):
    """A request that ended as it should."""

    ticket: Ticket
    ended: float
    """Monotonic seconds."""


class PeerWorkers:
    """Follows the other workers of this machine.

    Args:
        ledger: Whose loads they share.
        index: Whose blocks they add to.
        leases: Where sequences live.
        conditions: Hears of their picks.
        replicas: The members.
        per_token: Returns the seconds of prefill per token on a pool's replica.
        teach: Takes note of how long a ticket that ended well took, given its end.
    """

    def __init__(
        self,
        ledger: Ledger,
        index: PrefixIndex,
        leases: Leases,
        conditions: Conditions,
        replicas: Mapping[EndpointKey, Replica],
        per_token: Callable[[str, EndpointKey], float],
        teach: Callable[[Ticket, float], None],
    ) -> None:
        self._ledger = ledger
        self._index = index
        self._leases = leases
        self._conditions = conditions
        self._replicas = replicas
        self._per_token = per_token
        self._teach = teach
        self._shares: dict[int, dict[tuple[str, EndpointKey], Share]] = {}

    def __len__(self) -> int:
        return sum(self.open_by().values())

    def __repr__(self) -> str:
        return f"<PeerWorkers {sorted(self._shares)} open={len(self)}>"

    def open_by(self) -> dict[int, int]:
        """Return the requests in flight of each peer worker that has any."""
        counts = {
            peer_worker: sum([share.in_flight for share in shares.values()])
            for peer_worker, shares in self._shares.items()
        }
        return {peer_worker: count for peer_worker, count in counts.items() if count}

    @property
    def has_members(self) -> bool:
        """Whether there is a replica of which peer workers' state can be kept."""
        return bool(self._replicas)

    @property
    def conditions(self) -> Conditions:
        """Which replicas must not get new work."""
        return self._conditions

    def leases_in_force(self) -> Iterable[tuple[LeaseKey, Lease]]:
        """Return the leases of sequences, the least recently used first; some may have expired."""
        return self._leases.items()

    def index_uses(self) -> Iterable[Inserted]:
        """Return the prefix index as inserts that make an empty one the same."""
        return self._index.uses()

    def follow(self, peer_worker: int, event: ReplicationEvent, now: float) -> None:
        """Fold one word of a peer worker.

        Args:
            peer_worker: Its number.
            event: What it says.
            now: Monotonic seconds.
        """
        if isinstance(event, Share):
            self._share(peer_worker, event, now)
        elif isinstance(event, Inserted):
            if event.endpoint in self._replicas:
                self._index.insert(event.endpoint, event.blocks, now)
        elif isinstance(event, LatencySample):
            if event.ticket.endpoint in self._replicas:
                self._teach(event.ticket, event.ended)
        elif isinstance(event, Leased):
            self._lease(event, now)
        elif isinstance(event, Released):
            self._leases.release(event.key)

    def lost(self, peer_worker: int) -> int:
        """Forget what a peer worker whose state is unknown now had in flight; return how much."""
        shares = self._shares.pop(peer_worker, {})
        for share in shares.values():
            self._ledger.shift(share.endpoint, -share.in_flight, -share.work)
        return sum([share.in_flight for share in shares.values()])

    def removed(self, key: EndpointKey) -> None:
        """Forget what is in flight on an endpoint that left."""
        for shares in self._shares.values():
            for which in [each for each in shares if each[1] == key]:
                del shares[which]

    def _share(self, peer_worker: int, share: Share, now: float) -> None:
        pool, endpoint, in_flight, work, charges, prefilled = share
        replica = self._replicas.get(endpoint)
        if replica is None:
            return
        shares = self._shares.get(peer_worker)
        if shares is None:
            shares = self._shares[peer_worker] = {}
        which = (pool, endpoint)
        known = shares.get(which)
        shares[which] = share
        # Of a first word, what is in flight counts: the rest was before we listened.
        new = min(work, prefilled)
        picked = in_flight > 0
        if known is not None:
            new = prefilled - known.prefilled
            picked = charges != known.charges
            in_flight -= known.in_flight
            work -= known.work
        if new > 0.0:
            per_token = self._per_token(pool, endpoint)
            replica.busy_until = now + replica.drain_s(now, per_token) + new * per_token
        self._ledger.shift(endpoint, in_flight, work)
        if picked:
            self._conditions.picked(pool, endpoint, now)

    def _lease(self, event: Leased, now: float) -> None:
        key, lease = event.key, event.lease
        known = self._leases.find(key, now)
        if lease.endpoint in self._replicas and (known is None or known.expires <= lease.expires):
            self._leases.keep(key, lease, now)
