"""View: the published state, a fleet together with the incarnations and health of its replicas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tidegate_api.names import ClusterRef, Protocol
from xds_server.fleet.parts.identity import ByIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xds_server.fleet.findings import PublishedSick
    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec

PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")


class Incarnation(NamedTuple):
    """Incarnation of a replica, and when it began."""

    number: int
    joined_unix_ms: int
    """Unix milliseconds; 0 = part of the first revision, and therefore warm."""


@dataclass(frozen=True, slots=True)
class View:
    """One revision as it is published to clients."""

    fleet: Fleet
    incarnations: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Endpoint id -> (incarnation, Unix milliseconds of joining)."""
    sick: PublishedSick = field(default_factory=dict)
    """Replicas published as sick."""
    seed: int = field(default=0, repr=False)
    """Seed of prompt hashes, a secret of the fleet; 64 bits, 0 = none."""

    def incarnation(self, endpoint_id: str) -> Incarnation:
        """Return a replica's incarnation; an unlisted replica has incarnation 1 and is warm."""
        return Incarnation(*self.incarnations.get(endpoint_id, (1, 0)))


def address_of(endpoint: EndpointSpec, protocol: Protocol) -> str | None:
    """Return the endpoint's address for ``protocol``, ``None`` if it has none."""
    return endpoint.http if protocol == "http" else endpoint.grpc


@ByIdentity
def spoken(pool: PoolSpec) -> tuple[Protocol, ...]:
    """Return the protocols that any replica of the pool speaks."""
    return tuple(p for p in PROTOCOLS if any(address_of(each, p) for each in pool.endpoints))


def speaks(pool: PoolSpec, protocol: Protocol) -> bool:
    """Return whether any replica of the pool speaks ``protocol``."""
    return protocol in spoken(pool)


def clusters_of(pool: PoolSpec) -> Iterator[ClusterRef]:
    """Yield the clusters of a pool: one per variant and per protocol that its replicas speak."""
    for protocol in PROTOCOLS:
        if speaks(pool, protocol):
            for variant in pool.variants:
                yield ClusterRef(pool.name, variant.name, protocol)
