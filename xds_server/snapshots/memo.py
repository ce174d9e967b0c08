"""Memo: cache of built resources.

Building a cluster takes milliseconds, comparing its inputs microseconds, and a change affects a
small part of a fleet. So the expensive builders run only for resources that have really changed.

Rules:

1. A cached resource is found by comparing the builder's whole input by value. A builder gets no
   other input, so it cannot depend on anything that was not compared.
2. Per key the last ``KEPT`` results are kept (a plan builds two versions of a pool, and the next
   plan uses one of them again), for at most ``MAX_KEYS`` keys; the oldest keys are dropped first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from xds_server.fleet.model.fleet import EndpointSpec, VariantMatch
from xds_server.fleet.model.resilience import CircuitBreaker
from xds_server.fleet.rules.bodies import body_reads
from xds_server.resources.clusters import probes_http, variant_cluster
from xds_server.resources.endpoints import assignment
from xds_server.resources.filters.discovered import extensions
from xds_server.resources.listener import listener
from xds_server.resources.routes import route_configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from tidegate_api.names import ClusterRef
    from xds_server.fleet.model.fleet import Fleet, PoolSpec, VariantSpec

_Built = TypeVar("_Built")

KEPT: Final = 3
MAX_KEYS: Final = 65_536
_PLACEHOLDER: Final = "127.0.0.1:1"


class Memo:
    """Cache of built resources; see the module's rules."""

    def __init__(self) -> None:
        self._known: dict[Hashable, list[tuple[Any, Any]]] = {}

    def recall(self, key: Hashable, subject: Any, build: Callable[[], _Built]) -> _Built:
        """Return what was built for an equal subject under this key, or build it."""
        found = self._known.setdefault(key, [])
        for number, (known, result) in enumerate(found):
            if known == subject:
                found.insert(0, found.pop(number))
                return cast("_Built", result)
        built = build()
        found.insert(0, (subject, built))
        del found[KEPT:]
        if len(self._known) > MAX_KEYS:
            del self._known[next(iter(self._known))]
        return built

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

    def listener(self, fleet: Fleet) -> bytes:
        """Return ``listener``, which does not depend on pools."""
        subject = (fleet.listener, fleet.pickers)
        return self.recall("listener", subject, lambda: listener(*subject))

    def extensions(self, fleet: Fleet) -> Mapping[str, bytes]:
        """Return ``extensions``, which does not depend on endpoints."""
        bare = _stripped(fleet)
        return self.recall("extensions", bare, lambda: extensions(bare))

    def routes(self, fleet: Fleet, retiring: Fleet | None) -> bytes:
        """Return ``route_configuration``.

        Of the endpoints it depends on their protocols, and on which pools have the same ones.
        """
        bare, named = _stripped(fleet), None if retiring is None else _stripped(retiring)
        reads = body_reads(fleet)
        return self.recall(
            "routes", (bare, named, reads), lambda: route_configuration(bare, named, reads)
        )


def _stripped(fleet: Fleet) -> Fleet:
    """Return the fleet with one placeholder endpoint per set of protocols in each pool."""
    pools = (
        pool.model_copy(
            update={
                "endpoints": tuple(
                    EndpointSpec.model_construct(
                        http=_PLACEHOLDER if http else None, grpc=_PLACEHOLDER if grpc else None
                    )
                    for http, grpc in sorted({(bool(e.http), bool(e.grpc)) for e in pool.endpoints})
                )
            }
        )
        for pool in fleet.pools
    )
    return fleet.model_copy(update={"pools": tuple(pools)})
