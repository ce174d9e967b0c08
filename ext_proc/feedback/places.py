"""Which variant and endpoint a log entry's cluster and address stand for. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.observability.traffic import Resolved

if TYPE_CHECKING:
    from ext_proc.routing.registry import EndpointRegistry


class Places:
    """Finds variants and endpoints of the pools in force.

    Args:
        registry: The pools and their replicas.
    """

    def __init__(self, registry: EndpointRegistry) -> None:
        self._registry = registry

    def find(self, cluster: str, served: str | None) -> Resolved | None:
        """Return what a cluster (``pool/variant/protocol``, or the pool) and an address stand for.

        ``None`` = no pool has this name. The variant of an endpoint of the pool is the endpoint's.
        """
        name, _, rest = cluster.partition("/")
        pool = self._registry.pools.get(name)
        if pool is None:
            return None
        key = None if served is None else self._registry.at(name, served)
        for endpoint in pool.endpoints if key is not None else ():
            if endpoint.key == key:
                return Resolved(name, endpoint.variant, endpoint.key.id)
        variant = rest.partition("/")[0]
        known = any(each.name == variant for each in pool.variants)
        return Resolved(name, variant if known else "", None)
