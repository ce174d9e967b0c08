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

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE, POOL_TYPE
from xds_server.fleet.memo import ByIdentity
from xds_server.fleet.model.fleet import EndpointSpec, VariantMatch
from xds_server.fleet.model.resilience import CircuitBreaker
from xds_server.fleet.view import clusters_of, defaults_of
from xds_server.protocol.snapshot import Resource, TypeSet
from xds_server.resources.clusters import probes_http, variant_cluster
from xds_server.resources.endpoints import assignment
from xds_server.resources.pools import canary_of, pool_parts, shortest_idle, whole_pool
from xds_server.resources.routes.weights import neutral_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from tidegate_api.names import ClusterRef
    from xds_server.fleet.model.fleet import PoolSpec, VariantSpec
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
