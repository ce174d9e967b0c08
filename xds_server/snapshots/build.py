"""Sets of resources for each audience: type URL -> name -> serialized message.

Building a cluster takes milliseconds, and a change affects a small part of a fleet: ``Memo`` keeps
what was built.

Routes name the weights of variants by runtime keys. An Envoy whose bootstrap lacks these layers
would draw by the neutral weights of the routes, so it gets routes with literal weights. They are
derived from the routes and layers of the same snapshot, and only if a client needs them.
"""

from __future__ import annotations

import functools
from functools import partial
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from google.protobuf import any_pb2

from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    EXTENSION_TYPE,
    LISTENER_TYPE,
    PICKER_CLUSTER,
    POOL_TYPE,
    ROUTE_CONFIG_NAME,
    ROUTE_TYPE,
    RUNTIME_NAME,
    RUNTIME_TYPE,
    SECRET_TYPE,
    WEIGHT_LAYERS,
)
from xds_server.fleet.guards.fronts import exposed, fronts
from xds_server.fleet.memo import ByIdentity
from xds_server.fleet.model.fleet import EndpointSpec, VariantMatch
from xds_server.fleet.model.resilience import CircuitBreaker
from xds_server.fleet.rules.bodies import body_reads
from xds_server.fleet.view import clusters_of, defaults_of, log_slots, spoken
from xds_server.protocol.snapshot import Resource, Snapshot, TypeSet
from xds_server.resources.access_log import log_clusters
from xds_server.resources.clusters import picker_cluster, probes_http, variant_cluster
from xds_server.resources.edge.request_log import collector_clusters
from xds_server.resources.edge.tokens import keys_clusters
from xds_server.resources.endpoints import assignment, picker_assignment
from xds_server.resources.filters.discovered import extensions
from xds_server.resources.gateway import gateway_assignment, gateway_cluster, gateway_ports
from xds_server.resources.listener import all_listeners, further
from xds_server.resources.pools import canary_of, pool_parts, shortest_idle, whole_pool
from xds_server.resources.routes.table import route_configuration
from xds_server.resources.routes.weights import (
    neutral,
    neutral_pool,
    weight_layer,
    weights_in,
    weights_of,
    with_literal_weights,
)
from xds_server.resources.runtime import runtime
from xds_server.resources.secrets import secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from tidegate_api.names import ClusterRef
    from xds_server.fleet.findings import PublishedSick
    from xds_server.fleet.model.fleet import Fleet, PoolSpec, VariantSpec
    from xds_server.fleet.view import View
    from xds_server.resources.routes.weights import Weights

KEPT: Final = 3
MAX_KEYS: Final = 65_536
_PLACEHOLDER: Final = "127.0.0.1:1"

_Built = TypeVar("_Built")


class Upstream(NamedTuple):
    """The clusters of a pool and their assignments, by name."""

    clusters: Mapping[str, Resource]
    assignments: Mapping[str, Resource]


class Memo:
    """Cache of built resources: builders run only for those that have really changed.

    Rules:

    1. What was built for a pool is found by the pool's identity (``xds_server.fleet.memo``), and
       otherwise by comparing the builder's whole input by value. A builder gets no other input, so
       it cannot depend on anything that was not compared.
    2. Per key the last ``KEPT`` results are kept (a plan builds two versions of a pool, and the
       next plan uses one of them again), for at most ``MAX_KEYS`` keys; the oldest keys are dropped
       first. What is found by identity is kept as long as the pool.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, list[tuple[Any, Any]]] = {}
        self.target: Snapshot | None = None
        """What the newest plan leads Envoys to."""
        self.pools: Snapshot | None = None
        """What it leads pickers to."""
        self.upstream: ByIdentity[PoolSpec, [frozenset[str]], Upstream] = ByIdentity(self._upstream)
        """Returns the clusters and assignments of a pool with these ids published as sick."""
        self._pools: ByIdentity[PoolSpec, [], list[tuple[Any, Resource]]] = ByIdentity(lambda _: [])

    def recall(self, key: Hashable, subject: Any, build: Callable[[], _Built]) -> _Built:
        """Return what was built for an equal subject under this key, or build it."""
        found = self._known.setdefault(key, [])
        result = _remembered(found, subject, build)
        if len(self._known) > MAX_KEYS:
            del self._known[next(iter(self._known))]
        return result

    def type_set(
        self, type_url: str, subject: Any, messages: Callable[[], Mapping[str, bytes | Resource]]
    ) -> TypeSet:
        """Return Envoys' set of the messages, which depend on nothing but ``subject``."""
        before = None if self.target is None else self.target.type_set(type_url)
        return self.recall(
            ("set", type_url), subject, lambda: TypeSet.of(type_url, messages(), before)
        )

    def _upstream(self, pool: PoolSpec, sick: frozenset[str]) -> Upstream:
        variants = {variant.name: variant for variant in pool.variants}
        clusters, assignments = {}, {}
        for ref in clusters_of(pool):
            name = str(ref)
            cluster = self.cluster(pool, variants[ref.variant], ref)
            clusters[name] = self._resource(CLUSTER_TYPE, name, cluster)
            hosts = self.assignment(pool, ref, sick)
            assignments[name] = self._resource(ENDPOINT_TYPE, name, hosts)
        return Upstream(clusters, assignments)

    def _resource(self, type_url: str, name: str, message: bytes) -> Resource:
        return self.recall((type_url, name), message, lambda: Resource.of(type_url, name, message))

    def cluster(self, pool: PoolSpec, variant: VariantSpec, ref: ClusterRef) -> bytes:
        """Return ``variant_cluster``, which does not depend on weights and rarely on endpoints.

        Nor does it depend on settings of other resources: limits with a runtime key, the slow
        start's aggression, shadows, zones and ``drop_overload``.
        """
        per_host = pool.circuit_breaker.max_connections_per_endpoint
        bare = pool.plain(() if probes_http(pool) else stripped_pool(pool).endpoints).model_copy(
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
        """Return ``assignment``, which does not depend on weights."""
        bare = neutral_pool(pool)
        return self.recall(("assignment", ref), (bare, sick), lambda: assignment(bare, ref, sick))

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
        )
        mark = canary_of(view, pool)

        def build() -> Resource:
            bare = neutral_pool(pool)
            parts = self.recall(("pool", name), (bare, subject), lambda: pool_parts(view, bare))
            return Resource.of(POOL_TYPE, name, whole_pool(parts, pool, mark))

        return _remembered(self._pools(pool), (subject, mark), build)


def _remembered(found: list[tuple[Any, Any]], subject: Any, build: Callable[[], _Built]) -> _Built:
    for number, (known, result) in enumerate(found):
        if known is subject or known == subject:
            found.insert(0, found.pop(number))
            return result  # type: ignore[no-any-return] # what `build` returned
    result = build()
    found.insert(0, (subject, result))
    del found[KEPT:]
    return result


@ByIdentity
def stripped_pool(pool: PoolSpec) -> PoolSpec:
    """Return the pool with one placeholder per set of protocols in place of its replicas."""
    return pool.plain(tuple(_placeholder(*kind) for kind in sorted(pool.kinds)))


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


if TYPE_CHECKING:
    Resources = Mapping[str, Mapping[str, bytes]]
    Contents = Mapping[str, Mapping[str, bytes | Resource] | TypeSet]

_REMEMBERED: Final = 8
"""Route configurations with literal weights that are kept; a plan has at most three."""

_LAYERS_REMEMBERED: Final = 8 * len(WEIGHT_LAYERS)

_NONE_SICK: Final[PublishedSick] = MappingProxyType({})


def upstream_resources(
    fleet: Fleet, memo: Memo | None = None, sick: PublishedSick = _NONE_SICK
) -> Resources:
    """Return clusters and assignments: the upstream hosts of Envoy.

    Args:
        fleet: The fleet.
        memo: Cache of built resources.
        sick: Replicas published as sick.
    """
    contents = upstream_contents(fleet, memo, sick)
    return {url: _messages(found) for url, found in contents.items()}


def upstream_contents(
    fleet: Fleet, memo: Memo | None = None, sick: PublishedSick = _NONE_SICK
) -> Mapping[str, TypeSet]:
    """Return ``upstream_resources`` in the form in which snapshots share them."""
    memo = memo or Memo()
    bare = neutral(fleet)  # neither depends on weights
    return memo.recall("upstream", (bare, sick), lambda: _upstream(bare, memo, sick))


def _upstream(fleet: Fleet, memo: Memo, sick: PublishedSick) -> Mapping[str, TypeSet]:
    pickers = fleet.pickers.addresses
    clusters: dict[str, bytes | Resource] = {}
    assignments: dict[str, bytes | Resource] = {}
    tls = fleet.pickers.tls
    made = partial(picker_cluster, tls=tls)
    clusters[PICKER_CLUSTER] = memo.recall(PICKER_CLUSTER, tls, made)
    assignments[PICKER_CLUSTER] = picker_assignment(pickers)
    for name, addresses in log_clusters(pickers).items():
        clusters[name] = memo.recall(name, tls, partial(made, name))
        assignments[name] = picker_assignment(addresses, name)
    if fleet.gateway is not None:
        to = fleet.gateway.tls
        for name, protocol, addresses in gateway_ports(fleet.gateway):
            clusters[name] = memo.recall(name, to, partial(gateway_cluster, name, protocol, to))
            assignments[name] = gateway_assignment(name, addresses)
    clusters.update(keys_clusters(fleet.listener.jwt))
    clusters.update(collector_clusters(fleet.listener))
    for pool in fleet.pools:
        each = memo.upstream(pool, frozenset(sick.get(pool.name, ())))
        clusters.update(each.clusters)
        assignments.update(each.assignments)
    before = memo.target
    return {
        url: TypeSet.of(url, messages, None if before is None else before.type_set(url))
        for url, messages in ((CLUSTER_TYPE, clusters), (ENDPOINT_TYPE, assignments))
    }


def front_resources(
    fleet: Fleet,
    retiring: Fleet | None = None,
    coming: Fleet | None = None,
    memo: Memo | None = None,
    weights: Weights | None = None,
) -> Resources:
    """Return listener, filters, routes, limits, weights and secrets: Envoy's downstream side.

    Args:
        fleet: The fleet whose routes and limits are in force.
        retiring: The previous fleet. Pickers may choose its variants for a short time, so the
            routes to these variants and their limits remain.
        coming: The next fleet. Its new clusters have their limits from the start.
        memo: Cache of built resources.
        weights: The weights in force; those of ``fleet`` by default.
    """
    contents = front_contents(fleet, retiring, coming, memo, weights)
    return {url: _messages(found) for url, found in contents.items()}


def front_contents(
    fleet: Fleet,
    retiring: Fleet | None = None,
    coming: Fleet | None = None,
    memo: Memo | None = None,
    weights: Weights | None = None,
) -> Mapping[str, TypeSet]:
    """Return ``front_resources`` in the form in which snapshots share them."""
    memo = memo or Memo()
    layers = weights_of(fleet) if weights is None else weights
    # Nothing else depends on weights, so a change of them builds nothing else.
    bare, other = neutral(fleet), coming or retiring
    beside = None if other is None else _unlike(neutral(other), bare)
    was = None if retiring is None else _unlike(neutral(retiring), bare)
    limits, sets = memo.recall(
        "front", (bare, beside, was), lambda: _front(bare, beside, was, memo)
    )

    def runtimes() -> Mapping[str, bytes]:
        made = {n: memo.recall(n, v, partial(weight_layer, n, v)) for n, v in layers.items()}
        return {RUNTIME_NAME: limits, **made}

    return {RUNTIME_TYPE: memo.type_set(RUNTIME_TYPE, (limits, layers), runtimes), **sets}


def _front(
    fleet: Fleet, beside: Fleet | None, was: Fleet | None, memo: Memo
) -> tuple[bytes, Mapping[str, TypeSet]]:
    """Return the limits, and the sets of the other types.

    Of endpoints these depend on their protocols, and on which pools have the same ones. Of a
    retiring fleet routes depend on what it has and the new one has not.
    """
    bare, unpicked = _stripped(fleet), fleet.unpicked
    more = None if beside is None else _unlike(_stripped(beside), bare)
    gone = None if was is None else _unlike(_stripped(was), bare)
    named = gone
    if named is not None and set(_reachable(named)) <= set(_reachable(bare)):
        named = None
    listeners, slots = fronts(fleet.listener), len(log_slots(fleet.pickers.addresses))
    reads = [[body_reads(exposed(fleet, host)) for host in front.hosts] for front in listeners]
    limits = memo.recall(
        RUNTIME_NAME, (bare, more, unpicked), lambda: runtime(bare, more, dict(unpicked))
    )
    made: tuple[tuple[str, object, Callable[[], Mapping[str, bytes]]], ...] = (
        (SECRET_TYPE, (bare, more), lambda: secrets(bare, more)),
        (EXTENSION_TYPE, (bare, gone), lambda: extensions(bare, gone)),
        (LISTENER_TYPE, (fleet.listener, slots), lambda: all_listeners(fleet.listener, slots)),
        (
            ROUTE_TYPE,
            (bare, named, reads),
            lambda: {
                further(ROUTE_CONFIG_NAME, front.name): route_configuration(
                    bare, named, of_hosts, front
                )
                for front, of_hosts in zip(listeners, reads, strict=True)
            },
        ),
    )
    return limits, {url: memo.type_set(url, subject, build) for url, subject, build in made}


def _unlike(fleet: Fleet, other: Fleet) -> Fleet | None:
    """Return the fleet; ``None`` if it has nothing of its own."""
    return None if fleet == other else fleet


@ByIdentity
def _stripped(fleet: Fleet) -> Fleet:
    """Return the fleet without bounds, with one placeholder per set of protocols in each pool."""
    pools = tuple(map(stripped_pool, fleet.pools))
    return fleet.model_copy(update={"pools": pools}).bounding(())


def _reachable(fleet: Fleet) -> Iterator[tuple[str, ...]]:
    """Yield the clusters that pickers may name, and the paths by which they choose."""
    for pool in fleet.pools:
        for variant in pool.variants:
            for protocol in spoken(pool):
                yield pool.name, variant.name, protocol
        for path in pool.match.paths:
            yield (path,)


def picker_resources(view: View) -> Resources:
    """Return the pools, for pickers."""
    return {POOL_TYPE: _messages(picker_contents(view)[POOL_TYPE])}


def picker_contents(view: View, memo: Memo | None = None) -> Mapping[str, TypeSet]:
    """Return ``picker_resources`` in the form in which snapshots share them."""
    memo = memo or Memo()
    return {POOL_TYPE: memo.pool_set(view)}


def _messages(found: TypeSet) -> Mapping[str, bytes]:
    return {name: each.message for name, each in found.resources.items()}


def envoy_snapshot(contents: Contents, previous: Snapshot | None = None) -> Snapshot:
    """Return the snapshot of Envoys with these resources; see ``Snapshot.of``."""
    return Snapshot.of(contents, previous=previous, plain=_plain)


def weights_held(snapshot: Snapshot) -> Weights:
    """Return the weights in the layers of a snapshot."""
    found = snapshot.resources(RUNTIME_TYPE)
    return {name: _values(found[name]) if name in found else {} for name in WEIGHT_LAYERS}


def _plain(snapshot: Snapshot) -> Resources:
    held = snapshot.resources(RUNTIME_TYPE)
    layers = tuple(held[name] for name in WEIGHT_LAYERS if name in held)
    routes = snapshot.resources(ROUTE_TYPE)
    return {ROUTE_TYPE: {name: _literal(found, layers) for name, found in routes.items()}}


@functools.lru_cache(maxsize=_REMEMBERED)
def _literal(routes: Resource, layers: tuple[Resource, ...]) -> bytes:
    values = {key: value for layer in layers for key, value in _values(layer).items()}
    return with_literal_weights(any_pb2.Any.FromString(routes.any).value, values)


@functools.lru_cache(maxsize=_LAYERS_REMEMBERED)
def _values(layer: Resource) -> dict[str, int]:
    return weights_in(any_pb2.Any.FromString(layer.any).value)
