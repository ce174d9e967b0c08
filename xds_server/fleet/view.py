"""What is published: a fleet together with what the control server knows about its replicas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tidegate_api.names import ClusterRef, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xds_server.fleet.findings import Told
    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec

PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")


class Incarnation(NamedTuple):
    """When a replica became what it is now."""

    number: int
    joined_unix_ms: int
    """0 = it was there from the start and is warm."""


@dataclass(frozen=True, slots=True)
class View:
    """One revision as clients see it."""

    fleet: Fleet
    incarnations: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Endpoint id to (incarnation, Unix milliseconds of joining)."""
    told: Told = field(default_factory=dict)
    """Replicas that pickers find sick."""

    def incarnation(self, endpoint_id: str) -> Incarnation:
        """Return the incarnation of a replica; an unlisted one is the first, and warm."""
        return Incarnation(*self.incarnations.get(endpoint_id, (1, 0)))


def address_of(endpoint: EndpointSpec, protocol: Protocol) -> str | None:
    """Return the endpoint's address for ``protocol``, ``None`` where it has none."""
    return endpoint.http if protocol == "http" else endpoint.grpc


def speaks(pool: PoolSpec, protocol: Protocol) -> bool:
    """Tell whether any replica of the pool speaks ``protocol``."""
    return any(address_of(endpoint, protocol) for endpoint in pool.endpoints)


def clusters_of(pool: PoolSpec) -> Iterator[ClusterRef]:
    """Yield the clusters of a pool: one per variant and protocol that its replicas speak."""
    for protocol in PROTOCOLS:
        if speaks(pool, protocol):
            for variant in pool.variants:
                yield ClusterRef(pool.name, variant.name, protocol)
