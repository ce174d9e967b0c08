"""The pool state: a pool's candidates, precomputed so that a decision only reads.

A *replica* is one endpoint identity, shared by all pools that list it. A *candidate* is a replica
as it can be chosen in one pool, under its variant and by one protocol. Everything that stays the
same until the pool changes is computed here once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.latency.estimates import Served
from ext_proc.routing.latency.model import LatencyModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.canary import CanarySessions
    from ext_proc.routing.latency.model import FleetLatencyModel
    from ext_proc.routing.state.replica import Replica
    from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Protocol


class Candidate:
    """A replica as it can be chosen in one pool, under its variant and by one protocol."""

    __slots__ = (
        "adapters",
        "address",
        "capacity",
        "device",
        "draining",
        "host",
        "joined_unix_s",
        "key",
        "latency_model",
        "load",
        "position",
        "replica",
        "served",
        "variant",
        "zone",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        address: str,
        replica: Replica,
        position: int,
        latency_model: LatencyModel,
        served: Served | None = None,
    ) -> None:
        self.key = endpoint.key
        self.address = address
        self.host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        self.variant = endpoint.variant
        self.capacity = endpoint.capacity
        self.draining = endpoint.draining
        self.zone = endpoint.zone
        self.device = endpoint.device
        self.adapters = endpoint.adapters
        self.joined_unix_s = endpoint.joined_unix_s
        self.replica = replica
        self.load = replica.load
        self.latency_model = latency_model
        self.served = served or Served()
        self.position = position
        """Index of its endpoint in the pool, stable until the pool changes."""

    def __repr__(self) -> str:
        return f"<Candidate {self.key.id} {self.address}>"


BURST_S: Final = 2.0
"""How long requests may exceed the limits of all replicas, seconds."""
CALM_S: Final = 10.0
"""How long none must have waited after that, until they may again, seconds."""


class PoolState:
    """The candidates of one pool.

    Args:
        pool: The pool.
        replicas: The state of its endpoints. It holds their latency models and estimates in this
            pool, so a new pool state keeps what was learned.
        latency_model: The pool's fleet latency model.
    """

    def __init__(
        self, pool: Pool, replicas: Mapping[EndpointKey, Replica], latency_model: FleetLatencyModel
    ) -> None:
        self.pool = pool
        self.latency_model = latency_model
        for each in pool.endpoints:
            latency_models = replicas[each.key].latency_models
            replicas[each.key].served.setdefault(pool.name, Served())
            latency_models.setdefault(pool.name, LatencyModel(latency_model, each.capacity)).adapt(
                each.capacity
            )
        self.size = len(pool.endpoints)
        only = pool.variants[0] if len(pool.variants) == 1 else None
        self.only = only.name if only is not None and only.weight else None
        """The only variant of the pool, which needs no draw unless a request names a version;
        ``None`` if there are several or its weight is 0."""
        self.versions = {
            each.name: each.model_version for each in pool.variants if each.model_version
        }
        """The versions of the variants that have one."""
        self.open: dict[tuple[str, Protocol], tuple[Candidate, ...]] = {}
        """The candidates of a variant that are not draining, in the pool's order."""
        self.open_by_key: dict[tuple[str, Protocol], dict[EndpointKey, Candidate]] = {}
        """The same candidates by identity."""
        self._of: dict[tuple[EndpointKey, Protocol], Candidate] = {}
        self.remembered: dict[tuple[str, Protocol], tuple[Candidate, ...]] = {}
        """Good candidates left over from the previous decision, by variant and protocol; see
        ``sampling``."""
        self.canary: CanarySessions | None = None
        """Its sessions, where a rollout may run; set by the router."""
        self.prefilled = 0.0
        """The highest ``Replica.prefilled`` of its replicas that a pick has left."""
        self.exceeded: dict[tuple[str, str], tuple[float, float]] = {}
        """Since when requests of a variant and model have exceeded the limits of all replicas, and
        when one did last, or had to wait, monotonic seconds; unlisted models count as one."""
        self.keys = frozenset(each.key for each in pool.endpoints)
        self.mixes = False
        """Replicas share a host, or are in several zones, so that several may fail together."""
        self._at: dict[str, EndpointKey] = {}
        protocols: tuple[Protocol, ...] = ("http", "grpc")
        for protocol in protocols:
            candidates = [
                Candidate(
                    each,
                    address,
                    replicas[each.key],
                    position,
                    replicas[each.key].latency_models[pool.name],
                    replicas[each.key].served[pool.name],
                )
                for position, each in enumerate(pool.endpoints)
                if (address := each.address(protocol)) is not None
            ]
            hosts, zones = {each.host for each in candidates}, {each.zone for each in candidates}
            self.mixes |= len(zones) > 1 or 1 < len(hosts) < len(candidates)
            for candidate in candidates:
                self._of[candidate.key, protocol] = candidate
                self._at[candidate.address] = candidate.key
            for variant in pool.variants:
                free = [
                    candidate
                    for candidate in candidates
                    if candidate.variant == variant.name and not candidate.draining
                ]
                self.open[variant.name, protocol] = tuple(free)
                self.open_by_key[variant.name, protocol] = {
                    candidate.key: candidate for candidate in free
                }

    def stands(self, variant: str, model: str, now: float) -> bool:
        """Return whether limits have been exceeded for so long that it is no burst."""
        span = self.exceeded.get((variant, self._named(model)))
        return span is not None and now - span[0] >= BURST_S and now - span[1] < CALM_S

    def exceeds(self, variant: str, model: str, now: float) -> None:
        """Note a request that exceeds a limit."""
        key = variant, self._named(model)
        since, latest = self.exceeded.get(key, (now, now))
        self.exceeded[key] = (now if now - latest >= CALM_S else since), now

    def waits(self, model: str, now: float) -> None:
        """Note that a request of a model has to wait."""
        for key, (since, _) in self.exceeded.items():
            if key[1] == self._named(model):
                self.exceeded[key] = since, now

    def has_room(self, variant: str, model: str) -> None:
        """Note a request that has found room, while none of its model wait: a burst is over."""
        span = self.exceeded.get(key := (variant, self._named(model)))
        if span is not None and span[1] - span[0] < BURST_S:
            del self.exceeded[key]

    def _named(self, model: str) -> str:
        return model if model in self.pool.models else ""

    def candidate(self, key: EndpointKey, protocol: Protocol) -> Candidate | None:
        """Return the candidate of one endpoint, draining or not."""
        return self._of.get((key, protocol))

    def at(self, address: str) -> EndpointKey | None:
        """Return the endpoint of this pool at an ``ip:port``, ``None`` if there is none."""
        return self._at.get(address)
