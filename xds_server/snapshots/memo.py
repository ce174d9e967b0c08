"""Resources that were built before and are the same again.

Building a cluster costs milliseconds, comparing what it is made from microseconds; and a change
touches little of a fleet. So the costly builders are asked only for what really changed.

Rules:

1. What is remembered is compared by value with all that its builder is given: a builder gets
   nothing else, so it cannot depend on what was not compared.
2. Per key the last ``KEPT`` results are kept (a plan builds two versions of a pool, and the next
   plan meets one of them again), for at most ``MAX_KEYS`` keys; the oldest keys go first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from xds_server.fleet.model.fleet import EndpointSpec, VariantMatch
from xds_server.fleet.model.resilience import CircuitBreaker
from xds_server.resources.clusters import probes_http, variant_cluster
from xds_server.resources.endpoints import assignment
from xds_server.resources.listener import listener
from xds_server.resources.routes import route_configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from tidegate_api.names import ClusterRef
    from xds_server.fleet.model.fleet import Fleet, PoolSpec, VariantSpec

KEPT: Final = 3
MAX_KEYS: Final = 65_536
_SOMEWHERE: Final = "127.0.0.1:1"


class Memo:
    """Remembers built resources; see the module's rules. It lives as long as its owner."""

    def __init__(self) -> None:
        self._known: dict[Hashable, list[tuple[Any, bytes]]] = {}

    def recall(self, key: Hashable, subject: Any, build: Callable[[], bytes]) -> bytes:
        """Return what was built for an equal subject under this key, or build it."""
        found = self._known.setdefault(key, [])
        for number, (known, result) in enumerate(found):
            if known == subject:
                found.insert(0, found.pop(number))
                return result
        found.insert(0, (subject, build()))
        del found[KEPT:]
        if len(self._known) > MAX_KEYS:
            del self._known[next(iter(self._known))]
        return found[0][1]

    def cluster(self, pool: PoolSpec, variant: VariantSpec, ref: ClusterRef) -> bytes:
        """Return ``variant_cluster``, which knows neither weights nor, mostly, endpoints.

        Nor what travels over other channels: limits with a runtime key, the ramp's aggression,
        copies, zones and the brake.
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
        """Return ``listener``, which knows no endpoints."""
        bare = _sketched(fleet)
        return self.recall("listener", bare, lambda: listener(bare))

    def routes(self, fleet: Fleet, retiring: Fleet | None) -> bytes:
        """Return ``route_configuration``, which knows of endpoints only what they speak."""
        bare, named = _sketched(fleet), None if retiring is None else _sketched(retiring)
        return self.recall("routes", (bare, named), lambda: route_configuration(bare, named))


def _sketched(fleet: Fleet) -> Fleet:
    """Return the fleet with one nameless endpoint for each set of protocols that a pool has."""
    pools = (
        pool.model_copy(
            update={
                "endpoints": tuple(
                    EndpointSpec.model_construct(
                        http=_SOMEWHERE if http else None, grpc=_SOMEWHERE if grpc else None
                    )
                    for http, grpc in sorted({(bool(e.http), bool(e.grpc)) for e in pool.endpoints})
                )
            }
        )
        for pool in fleet.pools
    )
    return fleet.model_copy(update={"pools": tuple(pools)})
