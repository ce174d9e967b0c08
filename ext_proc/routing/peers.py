"""Peer workers: applies the replication events of the other workers on this machine.

They change the same loads, virtual clocks, index and leases as this worker's own requests. Several
routers on one machine that replicate their events therefore decide almost as one router would,
because a replica's load is what all of them sent. This worker's own part is counted separately, for
reports and settling.

Rules:

1. The last ``Share`` of a peer worker replaces all earlier ones for that replica, so a missed event
   does no lasting harm. ``lost`` drops all requests in flight of a peer worker at once.
2. Events about an endpoint that is not registered here change nothing.
3. No state is kept per request: only one share per peer worker, pool,
   replica and model.
4. Latency samples of peer workers train the latency models here too, so that the models agree
   (``LatencySample``).
5. Applying an event raises no event, so events do not circulate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ext_proc.routing.cache.index_events import Inserted
from ext_proc.routing.cache.trials import Confirmed, Withdrawn
from ext_proc.routing.state.leases import Lease, Leased, LeaseKey, Released

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ext_proc.routing.cache.prefix_index import PrefixIndex
    from ext_proc.routing.cache.trials import Trials, Verdict
    from ext_proc.routing.health.conditions import Conditions
    from ext_proc.routing.limits import Limits
    from ext_proc.routing.state.candidates import Replica
    from ext_proc.routing.state.leases import LeaseEvent, Leases
    from ext_proc.routing.state.ledger import Ledger
    from ext_proc.routing.suspicion import Suspicion, SuspicionEvent
    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.routing.values.proposal import Proposal
    from ext_proc.routing.values.ticket import Ticket

    ReplicationEvent: TypeAlias = (
        "Share | LatencySample | Inserted | Verdict | LeaseEvent | SuspicionEvent"
    )
    """Any event that a peer worker sends."""


class Share(NamedTuple):
    """Requests that one worker has in flight on a replica for a pool and a model."""

    pool: str
    endpoint: EndpointKey
    in_flight: int
    """Requests."""
    work: float
    """Estimated uncached input tokens of these requests."""
    charges: int
    """Number of requests since the worker started."""
    prefilled: float
    """Work of all prompts since the worker started, which has moved the virtual clock; tokens."""
    model: str | None = None
    """Model as which they count against limits, as of tickets."""


class LatencySample(NamedTuple):
    """A request that ended normally."""

    ticket: Ticket
    ended: float
    """Monotonic seconds."""


class PeerWorkers:
    """Applies the replication events of the other workers on this machine.

    Args:
        ledger: Its loads include the requests of peer workers.
        index: Gives the uses from which a worker that starts learns it.
        trials: Takes the blocks that peer workers inserted, and their verdicts.
        leases: Takes the leases that peer workers granted.
        conditions: Notified of the picks of peer workers.
        replicas: The registered replicas.
        per_token: Returns the seconds of prefill per token on a replica of a pool.
        learn: Learns from a ticket that ended normally; its second argument is the end, monotonic
            seconds.
        suspicion: Takes what peer workers hold against requests.
        limits: Learns from the answers of peer workers.
    """

    def __init__(
        self,
        ledger: Ledger,
        index: PrefixIndex,
        trials: Trials,
        leases: Leases,
        conditions: Conditions,
        replicas: Mapping[EndpointKey, Replica],
        per_token: Callable[[str, EndpointKey], float],
        learn: Callable[[Ticket, float], None],
        suspicion: Suspicion,
        limits: Limits,
    ) -> None:
        self._ledger = ledger
        self._index = index
        self._trials = trials
        self._leases = leases
        self._conditions = conditions
        self._replicas = replicas
        self._per_token = per_token
        self._learn = learn
        self._suspicion = suspicion
        self._limits = limits
        self._shares: dict[int, dict[tuple[str, EndpointKey, str | None], Share]] = {}

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
        """Whether any replica is registered, so that state of peer workers can be kept."""
        return bool(self._replicas)

    def knows(self, endpoint: EndpointKey) -> bool:
        """Return whether a replica is registered."""
        return endpoint in self._replicas

    def leases_in_force(self) -> Iterable[tuple[LeaseKey, Lease]]:
        """Return the leases of sequences, the least recently used first; some may have expired."""
        return self._leases.items()

    def lease(self, key: LeaseKey, now: float) -> Lease | None:
        """Return the lease of a sequence; ``None`` = it has none."""
        return self._leases.find(key, now)

    def suspicions(self) -> Iterable[SuspicionEvent]:
        """Return events that reproduce what is held against requests."""
        return self._suspicion.events()

    def index_uses(self) -> Iterator[Inserted]:
        """Yield inserts that reproduce the prefix index from an empty one."""
        yield from self._index.retention.uses()
        yield from self._trials.standing()

    def follow(self, peer_worker: int, event: ReplicationEvent, now: float) -> None:
        """Apply one replication event.

        Args:
            peer_worker: Number of the worker that sent it.
            event: The event.
            now: Monotonic seconds.
        """
        if isinstance(event, (Inserted, Confirmed, Withdrawn)):
            self._trials.follow(peer_worker, event, now)
        elif isinstance(event, Share):
            self._share(peer_worker, event, now)
        elif isinstance(event, LatencySample):
            if event.ticket.endpoint in self._replicas:
                self._learn(event.ticket, event.ended)
        elif isinstance(event, Leased):
            self._lease(event, now)
        elif isinstance(event, Released):
            self._leases.release(event.key)
        else:
            self._suspicion.follow(peer_worker, event)

    def grant(self, proposal: Proposal, now: float) -> tuple[Lease, bool] | None:
        """Return the lease of a sequence and whether it is the one proposed, which is made then.

        A lease on another replica than the one to be replaced stays. ``None`` = there is none, and
        the replica is not registered.
        """
        key = LeaseKey(proposal.pool, proposal.sequence)
        known = self._leases.find(key, now)
        if known is not None and known.endpoint != proposal.instead:
            return known, False
        if proposal.endpoint not in self._replicas:
            return None
        lease = Lease(proposal.endpoint, proposal.variant, now + proposal.idle_s)
        self._leases.keep(key, lease, now)
        return lease, True

    def lost(self, peer_worker: int) -> int:
        """Drop the requests in flight of a peer worker whose state is lost; return their number."""
        self._suspicion.deaths.lost(peer_worker)
        self._trials.lost(peer_worker)
        shares = self._shares.pop(peer_worker, {})
        for share in shares.values():
            self._ledger.shift(share.endpoint, -share.in_flight, -share.work, share.model)
        return sum([share.in_flight for share in shares.values()])

    def removed(self, key: EndpointKey) -> None:
        """Drop the shares of a removed endpoint."""
        for shares in self._shares.values():
            for which in [each for each in shares if each[1] == key]:
                del shares[which]

    def _share(self, peer_worker: int, share: Share, now: float) -> None:
        pool, endpoint, in_flight, work, charges, prefilled, model = share
        replica = self._replicas.get(endpoint)
        if replica is None:
            return
        shares = self._shares.get(peer_worker)
        if shares is None:
            shares = self._shares[peer_worker] = {}
        which = (pool, endpoint, model)
        known = shares.get(which)
        shares[which] = share
        # A first share counts only what is in flight: the rest was sent before we connected.
        new = min(work, prefilled)
        picked, ended = in_flight > 0, 0
        if known is not None:
            new = prefilled - known.prefilled
            picked = charges != known.charges
            in_flight -= known.in_flight
            work -= known.work
            ended = charges - known.charges - in_flight
        if new > 0.0:
            per_token = self._per_token(pool, endpoint)
            until = now + replica.drain_s(now, per_token) + new * per_token
            replica.busy(until, per_token)
            replica.prefilled += new
        self._ledger.shift(endpoint, in_flight, work, model)
        if ended > 0 and model is not None:
            self._limits.answered(endpoint, model, ended, now)
            self._limits.on_change(endpoint)
        if picked:
            self._conditions.picked(pool, endpoint, now)

    def _lease(self, event: Leased, now: float) -> None:
        key, lease = event.key, event.lease
        known = self._leases.find(key, now)
        if lease.endpoint in self._replicas and (known is None or known.expires <= lease.expires):
            self._leases.keep(key, lease, now)
