"""The members: the pools and their replicas, what these say of themselves, and what they taught.

Rules:

1. A replica is removed when it is gone from all pools: its tickets settle, its blocks and leases
   go. A change of policy, weights or limits keeps all three.
2. New pools are taken as a whole, or not at all.
3. A reading or an engine's word about a replica that is no member is ignored.
4. Removals, purges and what engines tell are events; ``on_event`` hears them in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.cache.exact_index import CacheEvent, ExactIndex, IndexEvent
from ext_proc.routing.cache.prefix_index import Purged
from ext_proc.routing.cache.reuse import Reuse
from ext_proc.routing.health.conditions import Conditions
from ext_proc.routing.latency.model import FleetLatencyModel
from ext_proc.routing.peers import PeerWorkers
from ext_proc.routing.pipeline.scheduler import Scheduler
from ext_proc.routing.policies import make_policy
from ext_proc.routing.state.directory import Directory
from ext_proc.routing.state.leases import Leases
from ext_proc.routing.state.ledger import EndpointRemoved, Ledger
from ext_proc.routing.state.pool_state import PoolState
from ext_proc.routing.state.replica import Replica

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ext_proc.routing.policies import Policy
    from ext_proc.routing.state.leases import LeaseEvent
    from ext_proc.routing.state.ledger import LedgerEvent
    from ext_proc.routing.values.pool import EndpointKey, Pool, Protocol
    from ext_proc.routing.values.reading import Reading
    from ext_proc.routing.values.refusal import Refusal
    from ext_proc.routing.values.request import Features
    from ext_proc.routing.values.rng import Rng
    from ext_proc.routing.values.ticket import Ticket


class EndpointRegistry:
    """Who may be chosen, and the books that are kept of them.

    Args:
        rng: Chance, for policies that draw.
        max_tickets: Most requests counted as in flight at one time.
        zone: Where this picker stands; empty = unknown.
        on_event: Hears each change of ledger, index and leases.
    """

    def __init__(
        self,
        rng: Rng,
        *,
        max_tickets: int,
        zone: str,
        on_event: Callable[[LedgerEvent | IndexEvent | LeaseEvent], None] | None,
    ) -> None:
        self._rng = rng
        self._zone = zone
        self._on_event = on_event
        self._learners: Mapping[str, tuple[Policy, ...]] = {}
        """Policies that learn, by pool."""
        self.pools: Mapping[str, Pool] = {}
        """The pools as last set, by name."""
        self.ledger = Ledger(max_tickets)
        self.index = ExactIndex()
        self.leases = Leases()
        self.conditions = Conditions()
        """Who must not get new work although it is a member."""
        self._scheduler = Scheduler(self.index, self.leases, self.conditions, zone)
        self._pool_states: dict[str, PoolState] = {}
        self._latency_models: dict[str, FleetLatencyModel] = {}
        self._replicas: dict[EndpointKey, Replica] = {}
        self._by_id: dict[str, list[Replica]] = {}
        self.peers = PeerWorkers(
            self.ledger,
            self.index,
            self.leases,
            self.conditions,
            self._replicas,
            self._per_token,
            self._teach,
        )
        """What other workers of this machine did."""
        self.reuse = Reuse()
        """What replicas say that they took from their caches."""
        self._directory = Directory(())

    # --- Who there is ---------------------------------------------------------------------------

    def set_pools(self, pools: Mapping[str, Pool], now: float) -> None:
        """Take new pools in place of the present ones.

        Args:
            pools: All pools, by name.
            now: Monotonic seconds.

        Raises:
            ValueError: A pool names an unknown policy; then nothing has changed.
        """
        policies = {
            name: {
                each: self._scheduler.policies.get(name, {}).get(each)
                or make_policy(each, self._rng, pool=name)
                for each in {pool.policy, *pool.allow_override}
            }
            for name, pool in pools.items()
        }
        for name, made in policies.items():
            for policy in made.values():
                policy.configure(pools[name])
        self._learners = {
            name: learners
            for name, made in policies.items()
            if (learners := tuple([each for each in made.values() if each.learns]))
        }
        limits: dict[EndpointKey, tuple[int, float]] = {}
        for pool in pools.values():
            for endpoint in pool.endpoints:
                blocks, ttl = limits.get(endpoint.key, (0, 0.0))
                limits[endpoint.key] = (max(blocks, pool.index_blocks), max(ttl, pool.index_ttl_s))
        for key in [each for each in self._replicas if each not in limits]:
            self._remove(key)
        for key, (blocks, ttl) in limits.items():
            self.index.limit(key, blocks, ttl)
            if key not in self._replicas:
                self._replicas[key] = Replica(key, self.ledger.load(key))
        self.pools = dict(pools)
        self._scheduler.policies = policies
        self._latency_models = {
            name: self._latency_models.get(name) or FleetLatencyModel() for name in pools
        }
        self._pool_states = {
            name: PoolState(pool, self._replicas, self._latency_models[name])
            for name, pool in pools.items()
        }
        self._directory = Directory(tuple(pools.values()))
        self._by_id = {}
        for replica in self._replicas.values():
            self._by_id.setdefault(replica.key.id, []).append(replica)
        self._scheduler.silent = sum(replica.silent for replica in self._replicas.values())
        self.conditions.set_pools(pools)
        self.reuse.keep(self._by_id)
        self.index.expire(now)

    def _remove(self, key: EndpointKey) -> None:
        del self._replicas[key]
        if self.ledger.apply(EndpointRemoved(key)) and self._on_event is not None:
            self._on_event(EndpointRemoved(key))
        self.peers.removed(key)
        self._purge(key)
        self.index.forget(key)
        self.leases.drop_endpoint(key)

    def pool_for(self, features: Features, path: str, protocol: Protocol) -> str | Refusal:
        """Name the pool of a request that no route named.

        The order: the pool that a header names; the pool that serves the model (on the paths of
        ``match.paths`` only one that lists the path); where nothing names a model, the pool that
        is the default for the path or for gRPC. Of a call about a model that no pool serves, the
        default's replicas say so themselves, as Triton does.
        """
        return self._directory.find(features, path, protocol)

    def at(self, pool: str, address: str) -> EndpointKey | None:
        """Return who of a pool listens on an ``ip:port``, ``None`` where it is nobody."""
        pool_state = self._pool_states.get(pool)
        return None if pool_state is None else pool_state.at(address)

    def replicas(self) -> Iterable[Replica]:
        """Return what is known of each replica; to be read at once, as the membership changes."""
        return self._replicas.values()

    def in_flight(self) -> dict[str, int]:
        """Return our requests in flight by endpoint id, each known endpoint included."""
        total: dict[str, int] = {}
        for key, load in self.ledger.loads():
            total[key.id] = total.get(key.id, 0) + load.in_flight - load.others
        return total

    def loads(self) -> dict[str, int]:
        """Return the requests in flight by endpoint id, those of peer workers included."""
        total: dict[str, int] = {}
        for key, load in self.ledger.loads():
            total[key.id] = total.get(key.id, 0) + load.in_flight
        return total

    # --- What they say of themselves ------------------------------------------------------------

    def observe(self, endpoint_id: str, readings: Sequence[Reading]) -> None:
        """Take what an endpoint says about itself; an unknown endpoint is ignored."""
        for replica in self._by_id.get(endpoint_id, ()):
            self._scheduler.silent -= replica.silent
            self.conditions.heard(replica.key, replica.readings, readings)
            replica.observe(readings)
        if endpoint_id in self._by_id:
            self.reuse.told(endpoint_id, readings)

    def cached(self, event: CacheEvent) -> None:
        """Take what an engine says of its cache; one of an unknown endpoint is ignored."""
        if event.endpoint in self._replicas:
            self.index.apply(event)
            if self._on_event is not None:
                self._on_event(event)

    def silent(self, endpoint_id: str) -> None:
        """Note that an endpoint that told its numbers does not answer any more.

        It is chosen last, not never: its metrics port may be all that fails. The next reading
        ends this. An endpoint that was never heard of is not judged.
        """
        for replica in self._by_id.get(endpoint_id, ()):
            self._scheduler.silent += replica.heard - replica.silent
            replica.silent = replica.heard

    def sweep(self, now: float) -> None:
        """Look who stands still with work in flight; about once a second."""
        ours = {key: load.in_flight - load.others for key, load in self.ledger.loads()}
        self.conditions.sweep(ours, now)

    def restarted(self, endpoint_id: str, unix_now: float) -> None:
        """Note that an endpoint's process is a new one.

        Its cache and its sequences are gone and its ramp starts again. Requests in flight settle
        by themselves, as Envoy ends their streams.
        """
        self.observe(endpoint_id, ())
        for replica in self._by_id.get(endpoint_id, ()):
            replica.restarted_unix_s = unix_now
            replica.busy_until = float("-inf")
            replica.first_bytes.clear()
            self.conditions.restarted(replica.key)
            for served in replica.served.values():
                served.clear()
            if self.index.is_exact(replica.key) is None:  # else its engines tell, and sooner
                self._purge(replica.key)
            self.leases.drop_endpoint(replica.key)

    def _purge(self, key: EndpointKey) -> None:
        self.index.purge(key)
        if self._on_event is not None:
            self._on_event(Purged(key))

    # --- What they taught -----------------------------------------------------------------------

    def answered(
        self,
        pool: str,
        endpoint: EndpointKey,
        first_byte_s: float | None,
        bytes_per_s: float | None,
        now: float,
    ) -> None:
        """Take how fast a replica answered, as the proxy saw it; see ``Served``."""
        replica = self._replicas.get(endpoint)
        if replica is not None and pool in replica.served:
            replica.served[pool].put(first_byte_s, bytes_per_s, now)

    def _teach(self, ticket: Ticket, now: float) -> None:
        """Learn from a request that ended now as it should."""
        if ticket.drain_s is None:
            return
        latency_model = self._replicas[ticket.endpoint].latency_models.get(ticket.pool)
        if latency_model is not None:
            tokens = ticket.work if ticket.prompted else None
            latency_model.learn(tokens, ticket.drain_s, ticket.ahead, now - ticket.at, now)

    def _per_token(self, pool: str, endpoint: EndpointKey) -> float:
        """Return the seconds of prefill per token on a pool's replica, 0 where unknown."""
        fleet = self._latency_models.get(pool)
        latency_model = self._replicas[endpoint].latency_models.get(pool)
        return (
            0.0
            if fleet is None or latency_model is None
            else fleet.seconds_per_token * latency_model.slowness
        )
