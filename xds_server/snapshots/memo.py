"""Memo: cache of built resources.

Building a cluster takes milliseconds, and a change affects a small part of a fleet. So builders run
only for resources that have really changed, and for unchanged pools nothing is even compared.

Rules:

1. What was built for a pool is found by the pool's identity (``xds_server.fleet.memo``), and
   otherwise by comparing the builder's whole input by value. A builder gets no other input, so it
   cannot depend on anything that was not compared.
2. Per key the last ``KEPT`` results are kept (a plan builds two versions of a pool, and the next
   plan uses one of them again), for at most ``MAX_KEYS`` keys; the oldest keys are dropped first.
   What is found by identity is kept as long as the pool.
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    HTTP3_LISTENER_NAME,
    LISTENER_NAME,
    POOL_TYPE,
    ROUTE_CONFIG_NAME,
    RUNTIME_NAME,
    RUNTIME_TYPE,
)
from xds_server.fleet.guards.fronts import exposed, fronts
from xds_server.fleet.memo import ByIdentity
from xds_server.fleet.model.fleet import EndpointSpec, VariantMatch
from xds_server.fleet.model.resilience import CircuitBreaker
from xds_server.fleet.rules.bodies import body_reads
from xds_server.fleet.view import clusters_of, defaults_of, log_slots, spoken
from xds_server.protocol.snapshot import Resource, TypeSet
from xds_server.resources.clusters import probes_http, variant_cluster
from xds_server.resources.endpoints import assignment
from xds_server.resources.filters.discovered import extensions
from xds_server.resources.listener import further, http3_listener, listener
from xds_server.resources.pools import pool_resource, shortest_idle
from xds_server.resources.routes.table import route_configuration
from xds_server.resources.runtime import runtime, weight_layer
from xds_server.resources.secrets import secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from tidegate_api.names import ClusterRef
    from xds_server.fleet.guards.fronts import Front
    from xds_server.fleet.model.fleet import Fleet, PoolSpec, VariantSpec
    from xds_server.fleet.view import View
    from xds_server.protocol.snapshot import Snapshot
    from xds_server.resources.runtime import Weights

KEPT: Final = 3
MAX_KEYS: Final = 65_536
_PLACEHOLDER: Final = "127.0.0.1:1"

_Built = TypeVar("_Built")


class Upstream(NamedTuple):
    """The clusters of a pool and their assignments, by name."""

    clusters: Mapping[str, Resource]
    assignments: Mapping[str, Resource]


class Memo:
    """Cache of built resources; see the module's rules."""

    def __init__(self) -> None:
        self._known: dict[Hashable, list[tuple[Any, Any]]] = {}
        self.target: Snapshot | None = None
        """What the newest plan leads Envoys to."""
        self.pools: Snapshot | None = None
        """What it leads pickers to."""
        self._upstream: ByIdentity[PoolSpec, Upstream] = ByIdentity(
            lambda pool: self._built_upstream(pool, frozenset())
        )
        self._pools: ByIdentity[PoolSpec, list[tuple[Any, Resource]]] = ByIdentity(lambda _: [])

    def recall(self, key: Hashable, subject: Any, build: Callable[[], _Built]) -> _Built:
        """Return what was built for an equal subject under this key, or build it."""
        found = self._known.setdefault(key, [])
        result = _remembered(found, subject, build)
        if len(self._known) > MAX_KEYS:
            del self._known[next(iter(self._known))]
        return result

    # --- pools ----------------------------------------------------------------------------------

    def upstream(self, pool: PoolSpec, sick: frozenset[str] = frozenset()) -> Upstream:
        """Return the clusters and assignments of a pool.

        Args:
            pool: The pool.
            sick: Ids of replicas published as sick.
        """
        return self._built_upstream(pool, sick) if sick else self._upstream(pool)

    def _built_upstream(self, pool: PoolSpec, sick: frozenset[str]) -> Upstream:
        variants = {variant.name: variant for variant in pool.variants}
        clusters, assignments = {}, {}
        for ref in clusters_of(pool):
            name = str(ref)
            clusters[name] = self.resource(
                CLUSTER_TYPE, name, self.cluster(pool, variants[ref.variant], ref)
            )
            assignments[name] = self.resource(ENDPOINT_TYPE, name, self.assignment(pool, ref, sick))
        return Upstream(clusters, assignments)

    def resource(self, type_url: str, name: str, message: bytes) -> Resource:
        """Return the resource of a message."""
        return self.recall((type_url, name), message, lambda: Resource.of(type_url, name, message))

    def pool_set(self, view: View) -> TypeSet:
        """Return the set of the pickers' resources (``pool_resource``) of all pools."""
        fleet = view.fleet
        common = fleet.listener, fleet.pickers, shortest_idle(fleet), view.seed
        pools = {pool.name: self._pool(view, pool, common) for pool in fleet.pools}
        before = None if self.pools is None else self.pools.type_set(POOL_TYPE)
        return TypeSet.of(POOL_TYPE, pools, before)

    def _pool(self, view: View, pool: PoolSpec, common: tuple[object, ...]) -> Resource:
        name, default = pool.name, defaults_of(view.fleet)
        subject = (
            (default.grpc == name, default.http == name),
            [path for path in pool.match.paths if default.paths.get(path) == name],
            common,
            view.sick.get(name),
            _incarnations(view, pool),
            view.canaries.get(name),
        )
        return _remembered(
            self._pools(pool),
            subject,
            lambda: self.recall(
                ("pool", name),
                (pool, subject),
                lambda: Resource.of(POOL_TYPE, name, pool_resource(view, pool)),
            ),
        )

    def cluster(self, pool: PoolSpec, variant: VariantSpec, ref: ClusterRef) -> bytes:
        """Return ``variant_cluster``, which does not depend on weights and rarely on endpoints.

        Nor does it depend on settings of other resources: limits with a runtime key, the slow
        start's aggression, shadows, zones and ``drop_overload``.
        """
        per_host = pool.circuit_breaker.max_connections_per_endpoint
        bare = pool.plain(() if probes_http(pool) else _stripped_pool(pool).endpoints).model_copy(
            update={
                "variants": (),
                "circuit_breaker": CircuitBreaker(max_connections_per_endpoint=per_host),
                "slow_start": pool.slow_start.model_copy(update={"aggression": 1.0}),
                "shadow": None,
                "zones": (),
                "drop_overload": 0.0,
            }
        )
        plain = variant.model_copy(update={"weight": 0, "match": VariantMatch()})
        return self.recall(
            ("cluster", ref), (bare, plain), lambda: variant_cluster(bare, plain, ref)
        )

    def assignment(
        self, pool: PoolSpec, ref: ClusterRef, sick: frozenset[str] = frozenset()
    ) -> bytes:
        """Return ``assignment``."""
        bare = pool.model_copy(
            update={"variants": tuple(v.model_copy(update={"weight": 0}) for v in pool.variants)}
        )
        return self.recall(("assignment", ref), (bare, sick), lambda: assignment(bare, ref, sick))

    # --- the whole fleet ------------------------------------------------------------------------

    def listeners(self, fleet: Fleet) -> Mapping[str, bytes]:
        """Return each ``listener``, which does not depend on pools."""
        slots = len(log_slots(fleet.pickers.addresses))
        found = {}
        for front in fronts(fleet.listener):
            name, spec = further(LISTENER_NAME, front.name), front.spec
            over_tcp = partial(listener, spec, slots, of=front.name, forwards_names=front.operators)
            found[name] = self.recall(name, (spec, slots, front.operators), over_tcp)
            if spec.http3:
                name, over_udp = HTTP3_LISTENER_NAME, partial(http3_listener, spec, slots)
                found[name] = self.recall(name, (spec, slots), over_udp)
        return found

    def extensions(self, fleet: Fleet, retiring: Fleet | None = None) -> Mapping[str, bytes]:
        """Return ``extensions``, which does not depend on endpoints."""
        bare, was = _stripped(fleet), _other(fleet, retiring)
        return self.recall("extensions", (bare, was), lambda: extensions(bare, was))

    def runtime(self, fleet: Fleet, also: Fleet | None) -> bytes:
        """Return ``runtime``, which depends on the protocols of the endpoints only."""
        bare, more, unpicked = _stripped(fleet), _other(fleet, also), fleet.unpicked
        return self.recall(
            "runtime", (bare, more, unpicked), lambda: runtime(bare, more, dict(unpicked))
        )

    def secrets(self, fleet: Fleet, also: Fleet | None) -> Mapping[str, bytes]:
        """Return ``secrets``, which depends on the protocols of the endpoints only."""
        bare, more = _stripped(fleet), _other(fleet, also)
        return self.recall("secrets", (bare, more), lambda: secrets(bare, more))

    def runtime_set(self, fleet: Fleet, also: Fleet | None, weights: Weights) -> TypeSet:
        """Return the set of all layers, those of the weights included."""
        limits = self.runtime(fleet, also)

        def messages() -> Mapping[str, bytes]:
            layers = {
                name: self.recall(name, values, partial(weight_layer, name, values))
                for name, values in weights.items()
            }
            return {RUNTIME_NAME: limits, **layers}

        return self.type_set(RUNTIME_TYPE, (limits, weights), messages)

    def type_set(
        self, type_url: str, subject: Any, messages: Callable[[], Mapping[str, bytes]]
    ) -> TypeSet:
        """Return the set of the messages, which depend on nothing but ``subject``."""
        before = None if self.target is None else self.target.type_set(type_url)

        def build() -> TypeSet:
            made = {n: self.resource(type_url, n, data) for n, data in messages().items()}
            return TypeSet.of(type_url, made, before)

        return self.recall(("set", type_url), subject, build)

    def routes(self, fleet: Fleet, retiring: Fleet | None, front: Front | None = None) -> bytes:
        """Return ``route_configuration`` of a listener, by default the fleet's own.

        Of the endpoints it depends on their protocols, and on which pools have the same ones. Of a
        retiring fleet it depends on what it has and the new one has not.
        """
        front = fronts(fleet.listener)[0] if front is None else front
        bare, named = _stripped(fleet), _other(fleet, retiring)
        if named is not None and set(_reachable(named)) <= set(_reachable(bare)):
            named = None
        reads = [body_reads(exposed(fleet, host)) for host in front.hosts]
        return self.recall(
            further("routes", front.name),
            (bare, named, reads, front),
            lambda: route_configuration(bare, named, reads, front),
        )

    def all_routes(self, fleet: Fleet, retiring: Fleet | None) -> Mapping[str, bytes]:
        """Return the routes of each listener by name."""
        return {
            further(ROUTE_CONFIG_NAME, front.name): self.routes(fleet, retiring, front)
            for front in fronts(fleet.listener)
        }


def _remembered(found: list[tuple[Any, Any]], subject: Any, build: Callable[[], _Built]) -> _Built:
    for number, (known, result) in enumerate(found):
        if known is subject or known == subject:
            found.insert(0, found.pop(number))
            return result  # type: ignore[no-any-return] # what `build` returned
    result = build()
    found.insert(0, (subject, result))
    del found[KEPT:]
    return result


def _other(fleet: Fleet, other: Fleet | None) -> Fleet | None:
    """Return the other fleet without its endpoints; ``None`` if it has nothing of its own."""
    if other is None:
        return None
    bare = _stripped(other)
    return None if bare == _stripped(fleet) else bare


def _reachable(fleet: Fleet) -> Iterator[tuple[str, ...]]:
    """Yield the clusters that pickers may name, and the paths by which they choose."""
    for pool in fleet.pools:
        for variant in pool.variants:
            for protocol in spoken(pool):
                yield pool.name, variant.name, protocol
        for path in pool.match.paths:
            yield (path,)


@ByIdentity
def _stripped_pool(pool: PoolSpec) -> PoolSpec:
    return pool.plain(tuple(_placeholder(*kind) for kind in sorted(pool.kinds)))


@ByIdentity
def _stripped(fleet: Fleet) -> Fleet:
    """Return the fleet without bounds, with one placeholder per set of protocols in each pool."""
    pools = tuple(map(_stripped_pool, fleet.pools))
    return fleet.model_copy(update={"pools": pools}).bounding(())


def _placeholder(http: bool, grpc: bool) -> EndpointSpec:
    return EndpointSpec.model_construct(
        http=_PLACEHOLDER if http else None, grpc=_PLACEHOLDER if grpc else None
    )


@ByIdentity
def _ids(pool: PoolSpec) -> Callable[[Mapping[str, Any]], Any] | None:
    """Return a function that takes the values of a pool's endpoints out of a mapping."""
    return itemgetter(*(each.id for each in pool.endpoints)) if pool.endpoints else None


def _incarnations(view: View, pool: PoolSpec) -> Any:
    take = _ids(pool)
    if take is None:
        return None
    try:
        return take(view.incarnations)
    except KeyError:
        return [view.incarnation(endpoint.id) for endpoint in pool.endpoints]
