"""Memo: cache of built resources.

Building a cluster takes milliseconds, and a change affects a small part of a fleet. So builders run
only for resources that have really changed, and for unchanged pools nothing is even compared.

Rules:

1. What was built for a pool is found by the pool's identity (``xds_server.fleet.parts``), and
   otherwise by comparing the builder's whole input by value. A builder gets no other input, so it
   cannot depend on anything that was not compared.
2. Per key the last ``KEPT`` results are kept (a plan builds two versions of a pool, and the next
   plan uses one of them again), for at most ``MAX_KEYS`` keys; the oldest keys are dropped first.
   What is found by identity is kept as long as the pool.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE, POOL_TYPE
from xds_server.fleet.model.fleet import EndpointSpec, VariantMatch
from xds_server.fleet.model.resilience import CircuitBreaker
from xds_server.fleet.parts.identity import ByIdentity
from xds_server.fleet.rules.bodies import body_reads
from xds_server.fleet.rules.fleet import default_for_grpc, default_for_path
from xds_server.fleet.view import clusters_of, log_slots, spoken
from xds_server.protocol.snapshot import Resource
from xds_server.resources.clusters import probes_http, variant_cluster
from xds_server.resources.endpoints import assignment
from xds_server.resources.filters.discovered import extensions
from xds_server.resources.listener import listener
from xds_server.resources.pools import pool_resource
from xds_server.resources.routes import route_configuration
from xds_server.resources.runtime import runtime, weight_layer
from xds_server.resources.secrets import secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from tidegate_api.names import ClusterRef
    from xds_server.fleet.model.fleet import Fleet, PoolSpec, VariantSpec
    from xds_server.fleet.view import View
    from xds_server.protocol.snapshot import Snapshot

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
        result = _recalled(found, subject, build)
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
            clusters[name] = self._resource(
                CLUSTER_TYPE, name, self.cluster(pool, variants[ref.variant], ref)
            )
            assignments[name] = self._resource(
                ENDPOINT_TYPE, name, self.assignment(pool, ref, sick)
            )
        return Upstream(clusters, assignments)

    def _resource(self, type_url: str, name: str, message: bytes) -> Resource:
        return self.recall((type_url, name), message, lambda: Resource.of(type_url, name, message))

    def pools_of(self, view: View) -> Mapping[str, Resource]:
        """Return the pickers' resource of each pool (``pool_resource``), by name.

        Of the other pools it depends on whether this one is the default among them.
        """
        fleet, resources = view.fleet, {}
        default = default_for_grpc(fleet)
        common = (fleet.listener.buffer_bytes, fleet.pickers.addresses, view.seed)
        for pool in fleet.pools:
            name, paths = pool.name, pool.match.paths
            subject = (
                default == name,
                [path for path in paths if default_for_path(fleet, path) == name],
                common,
                view.sick.get(name),
                _incarnations(view, pool),
            )
            resources[name] = self._pool(view, pool, subject)
        return resources

    def _pool(self, view: View, pool: PoolSpec, subject: tuple[Any, ...]) -> Resource:
        return _recalled(
            self._pools(pool),
            subject,
            lambda: self.recall(
                ("pool", pool.name),
                (pool, subject),
                lambda: Resource.of(POOL_TYPE, pool.name, pool_resource(view, pool)),
            ),
        )

    def cluster(self, pool: PoolSpec, variant: VariantSpec, ref: ClusterRef) -> bytes:
        """Return ``variant_cluster``, which does not depend on weights and rarely on endpoints.

        Nor does it depend on settings of other resources: limits with a runtime key, the slow
        start's aggression, shadows, zones and ``drop_overload``.
        """
        per_host = pool.circuit_breaker.max_connections_per_endpoint
        bare = pool.model_copy(
            update={
                "endpoints": () if probes_http(pool) else pool.endpoints,
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

    def listener(self, fleet: Fleet) -> bytes:
        """Return ``listener``, which does not depend on pools."""
        subject = (fleet.listener, len(log_slots(fleet.pickers.addresses)))
        return self.recall("listener", subject, lambda: listener(*subject))

    def extensions(self, fleet: Fleet) -> Mapping[str, bytes]:
        """Return ``extensions``, which does not depend on endpoints."""
        bare = _stripped(fleet)
        return self.recall("extensions", bare, lambda: extensions(bare))

    def runtime(self, fleet: Fleet, also: Fleet | None) -> bytes:
        """Return ``runtime``, which depends on the protocols of the endpoints only."""
        bare, more = _stripped(fleet), _other(fleet, also)
        return self.recall("runtime", (bare, more), lambda: runtime(bare, more))

    def secrets(self, fleet: Fleet, also: Fleet | None) -> Mapping[str, bytes]:
        """Return ``secrets``, which depends on the protocols of the endpoints only."""
        bare, more = _stripped(fleet), _other(fleet, also)
        return self.recall("secrets", (bare, more), lambda: secrets(bare, more))

    def weight_layer(self, name: str, values: Mapping[str, int]) -> bytes:
        """Return ``weight_layer``."""
        return self.recall(name, values, lambda: weight_layer(name, values))

    def routes(self, fleet: Fleet, retiring: Fleet | None) -> bytes:
        """Return ``route_configuration``.

        Of the endpoints it depends on their protocols, and on which pools have the same ones. Of a
        retiring fleet it depends on what it has and the new one has not.
        """
        bare, named = _stripped(fleet), _other(fleet, retiring)
        if named is not None and set(_reachable(named)) <= set(_reachable(bare)):
            named = None
        reads = body_reads(fleet)
        return self.recall(
            "routes", (bare, named, reads), lambda: route_configuration(bare, named, reads)
        )


def _recalled(found: list[tuple[Any, Any]], subject: Any, build: Callable[[], _Built]) -> _Built:
    for number, (known, result) in enumerate(found):
        if known == subject:
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
def _stripped(fleet: Fleet) -> Fleet:
    """Return the fleet with one placeholder endpoint per set of protocols in each pool."""
    return fleet.model_copy(update={"pools": tuple(map(_stripped_pool, fleet.pools))})


@ByIdentity
def _stripped_pool(pool: PoolSpec) -> PoolSpec:
    kinds = sorted({(bool(each.http), bool(each.grpc)) for each in pool.endpoints})
    return pool.model_copy(update={"endpoints": tuple(_placeholder(*kind) for kind in kinds)})


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
