"""The endpoint registry: the pools, their replicas, and the readings of the replicas.

Rules:

1. A replica is removed when no pool lists it any more: its tickets are settled, its blocks and
   leases are dropped. A change of policy, weights or limits keeps all three.
2. New pools are taken as a whole, or not at all.
3. A reading or a cache event about an unregistered replica is ignored.
4. Purges and cache events are passed to ``on_event``, in order.
5. ``members`` and ``pool_states`` stay the same objects, so callers may keep references to them.
6. A replica's blocks in the index are bounded by the size of its KV cache once its page tells it
   (``capacity``); the last size that it told stays in force. Engines that report their blocks
   (KV events) are bounded by the pool's setting only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.canary import CanaryRollouts
from ext_proc.routing.cache.index_events import Purged, Reporting
from ext_proc.routing.health.placement import Placement
from ext_proc.routing.limits import Limits
from ext_proc.routing.state.abandoned import Abandoned
from ext_proc.routing.state.candidates import PoolState, Replica
from ext_proc.routing.state.directory import Directory
from ext_proc.routing.state.ledger import EndpointRemoved
from ext_proc.routing.values.capacity import NO_BOUNDS, IndexBounds, cache_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ext_proc.routing.cache.index_events import CacheEvent, IndexEvent
    from ext_proc.routing.cache.prefix_index import PrefixIndex
    from ext_proc.routing.cache.reuse import Reuse
    from ext_proc.routing.health.conditions import Conditions
    from ext_proc.routing.latency.model import FleetLatencyModel
    from ext_proc.routing.scales import Scales
    from ext_proc.routing.state.leases import Leases
    from ext_proc.routing.state.ledger import Ledger
    from ext_proc.routing.values.pool import EndpointKey, Pool, Protocol
    from ext_proc.routing.values.reading import Reading
    from ext_proc.routing.values.refusal import Refusal
    from ext_proc.routing.values.request import Features


class EndpointRegistry:
    """The pools and the replicas registered in them.

    Args:
        ledger: Requests in flight; the tickets of a removed replica are settled in it.
        index: Contents of the caches; drops the blocks of a removed or restarted replica.
        leases: Leases of sequences; drops those on a removed or restarted replica.
        conditions: Health conditions of the replicas.
        reuse: Prompt tokens that replicas report as reused from their caches.
        on_event: Called with each change of the index that originates here.
        on_removed: Called with each removed replica.
        on_read: Called with a replica and its latest readings; there are none after a restart.
    """

    def __init__(
        self,
        ledger: Ledger,
        index: PrefixIndex,
        leases: Leases,
        conditions: Conditions,
        reuse: Reuse,
        scales: Scales,
        *,
        on_event: Callable[[IndexEvent], None] | None,
        on_removed: Callable[[EndpointKey], None],
        on_read: Callable[[Replica, Sequence[Reading]], None],
    ) -> None:
        self._ledger = ledger
        self.index = index
        self._leases = leases
        self._conditions = conditions
        self._reuse = reuse
        self._scales = scales
        self._on_event = on_event
        self._on_removed = on_removed
        self._on_read = on_read
        self.placement = Placement()
        """Which replicas have which model."""
        self._directory = Directory(())
        self._by_id: dict[str, list[Replica]] = {}
        self.pools: Mapping[str, Pool] = {}
        """The pools as last set, by name."""
        self.pool_states: dict[str, PoolState] = {}
        """The state of each pool, precomputed for decisions, by name."""
        self.members: dict[EndpointKey, Replica] = {}
        """The registered replicas."""
        self.canaries = CanaryRollouts()
        """The sessions of pools that may have a rollout."""
        self.limits = Limits(self.members)
        """How many requests each replica may have in flight."""
        self.abandoned = Abandoned(ledger, self.members)
        """What replicas still compute though no client waits for it."""

    # --- Membership -----------------------------------------------------------------------------

    def set_pools(
        self, pools: Mapping[str, Pool], models: Mapping[str, FleetLatencyModel], now: float
    ) -> None:
        """Replace all pools.

        Args:
            pools: All pools, by name.
            models: The latency model of each pool.
            now: Monotonic seconds.
        """
        bounds = self._bounds(pools)
        for key in [each for each in self.members if each not in bounds]:
            self._remove(key)
        for key, each in bounds.items():
            if key not in self.members:
                self.members[key] = Replica(key, self._ledger.load(key))
            self.members[key].bounds = each
            self._bound(self.members[key])
        self.pools = dict(pools)
        states = {name: PoolState(pool, self.members, models[name]) for name, pool in pools.items()}
        self.pool_states.clear()
        self.pool_states.update(states)
        self.canaries.set_pools(pools, now)
        for name, sessions in self.canaries.sessions.items():
            states[name].canary = sessions
        self._directory = Directory(tuple(pools.values()))
        self._by_id = {}
        for replica in self.members.values():
            self._by_id.setdefault(replica.key.id, []).append(replica)
        self._end_silences(pools)
        self._conditions.set_pools(pools)
        self.placement.set_pools(pools, now)
        self.limits.set_pools(pools)
        self._reuse.keep(self._by_id)
        self.index.expire(now)

    def _end_silences(self, pools: Mapping[str, Pool]) -> None:
        """Let endpoints whose page left the fleet be silent no more: no reading would end it."""
        endpoints = (each for pool in pools.values() for each in pool.endpoints)
        paged = {each.key for each in endpoints if each.metrics_url is not None}
        for key, replica in self.members.items():
            replica.silent = replica.silent and key in paged
        self._conditions.silent = sum(replica.silent for replica in self.members.values())

    def bound(self) -> None:
        """Apply the bounds of all replicas' blocks anew, after a change of a pool's scale."""
        for key, each in self._bounds(self.pools).items():
            replica = self.members[key]
            if replica.bounds != each:
                replica.bounds = each
                self._bound(replica)

    def _bounds(self, pools: Mapping[str, Pool]) -> dict[EndpointKey, IndexBounds]:
        bounds: dict[EndpointKey, IndexBounds] = {}
        for pool in pools.values():
            scale = self._scales.of(pool.name)
            for endpoint in pool.endpoints:
                bounds[endpoint.key] = bounds.get(endpoint.key, NO_BOUNDS).with_pool(pool, scale)
        return bounds

    def _bound(self, replica: Replica) -> None:
        """Apply the bound of a replica's blocks (rule 6)."""
        key, bounds = replica.key, replica.bounds
        told = replica.cache_tokens if self.index.is_exact(key) is None else None
        self.index.limit(key, bounds.blocks(told), bounds.age_s(told))

    def _remove(self, key: EndpointKey) -> None:
        del self.members[key]
        self.abandoned.drop(key)
        self._ledger.apply(EndpointRemoved(key))
        self._on_removed(key)
        self._purge(key)
        self.index.forget(key)
        self._leases.drop_endpoint(key)

    def pool_for(self, features: Features, path: str, protocol: Protocol) -> str | Refusal:
        """Find the pool of a request whose route names none.

        In this order: the pool that a header names; the pool that serves the model (on the paths
        of ``match.paths`` only a pool that lists the path); if the request names no model, the
        default pool for the path or for gRPC. A call about a model that no pool serves goes to the
        default pool, whose replicas return the error, as Triton does.
        """
        return self._directory.find(features, path, protocol)

    def at(self, pool: str, address: str) -> EndpointKey | None:
        """Return the endpoint of a pool at an ``ip:port``, ``None`` if there is none."""
        pool_state = self.pool_states.get(pool)
        return None if pool_state is None else pool_state.at(address)

    def replicas(self) -> Iterable[Replica]:
        """Return a live view of the replicas; do not keep it across a change of the pools."""
        return self.members.values()

    def in_flight(self) -> dict[str, int]:
        """Return this worker's requests in flight by endpoint id; idle endpoints are included."""
        total: dict[str, int] = {}
        for key, load in self._ledger.loads():
            total[key.id] = total.get(key.id, 0) + load.in_flight - load.others
        return total

    def loads(self) -> dict[str, int]:
        """Return the requests in flight by endpoint id, including those of peer workers."""
        total: dict[str, int] = {}
        for key, load in self._ledger.loads():
            total[key.id] = total.get(key.id, 0) + load.in_flight
        return total

    # --- Reports of replicas --------------------------------------------------------------------

    def observe(self, endpoint_id: str, readings: Sequence[Reading]) -> None:
        """Take the latest readings of an endpoint; an unknown endpoint is ignored."""
        for replica in self._by_id.get(endpoint_id, ()):
            self._conditions.silent -= replica.silent
            self._conditions.observe(replica.key, replica.readings, readings)
            adapters = replica.adapters
            replica.observe(readings)
            if replica.others:
                for pool in replica.latency_models.keys() & self.pool_states.keys():
                    state = self.pool_states[pool]
                    state.others_at = max(state.others_at, replica.others_at)
            self.limits.read(replica.key, readings)
            self._on_read(replica, readings)
            if replica.adapters != adapters:
                each = (member.adapters for member in self.members.values())
                self._conditions.adapters = frozenset().union(*each)
            tokens = cache_tokens(readings)
            if tokens is not None and tokens != replica.cache_tokens:
                replica.cache_tokens = tokens
                self._bound(replica)
        if endpoint_id in self._by_id:
            self._reuse.observe(endpoint_id, readings)
            self._scales.observe(endpoint_id, readings)

    def cached(self, event: CacheEvent) -> None:
        """Apply an engine's cache event to the index; an unknown endpoint is ignored."""
        if event.endpoint in self.members:
            self.index.apply(event)
            if isinstance(event, Reporting):
                self._bound(self.members[event.endpoint])
            if self._on_event is not None:
                self._on_event(event)

    def silent(self, endpoint_id: str) -> None:
        """Mark an endpoint whose readings have stopped as silent, until its next reading.

        A silent endpoint is chosen last rather than excluded, because only its metrics port may
        have failed. An endpoint that never reported is not marked.
        """
        for replica in self._by_id.get(endpoint_id, ()):
            self._conditions.silent += replica.has_reported - replica.silent
            replica.silent = replica.has_reported

    def sweep(self, now: float) -> None:
        """Let slower replicas be tried again, and look for those that make no progress.

        Call it about once a second.

        Args:
            now: Monotonic seconds.
        """
        for replica in self.members.values():
            for model in replica.latency_models.values():
                model.sweep(now)
        self.abandoned.sweep(now)
        self.placement.sweep(now)
        waited = self.abandoned.waited
        ours = {
            key: load.in_flight - load.others - waited[key] for key, load in self._ledger.loads()
        }
        self._conditions.sweep(ours, now)

    def restarted(self, endpoint_id: str, unix_now: float) -> None:
        """Note that an endpoint's process was restarted.

        Its cached blocks and leases are dropped and its ramp starts again. Requests in flight
        settle when Envoy ends their streams.
        """
        self.observe(endpoint_id, ())
        self._scales.restarted(endpoint_id)
        for replica in self._by_id.get(endpoint_id, ()):
            replica.restarted_unix_s = unix_now
            replica.busy_until = replica.held_until = float("-inf")
            replica.first_bytes.clear()
            self._conditions.restarted(replica.key)
            self.placement.restarted(replica.key)
            for served in replica.served.values():
                served.clear()
            if self.index.is_exact(replica.key) is None:  # else its engines report it, and earlier
                self._purge(replica.key)
            self._leases.drop_endpoint(replica.key)
            self.limits.restarted(replica.key)
            self.abandoned.drop(replica.key)

    def restarted_since(self, key: EndpointKey, unix_s: float) -> bool | None:
        """Return whether a replica's process was replaced since then; ``None`` = unknown."""
        replica = self.members.get(key)
        at = None if replica is None else replica.restarted_unix_s
        return True if at is not None and at >= unix_s else None

    def _purge(self, key: EndpointKey) -> None:
        self.index.purge(key)
        if self._on_event is not None:
            self._on_event(Purged(key))
