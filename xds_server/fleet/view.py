"""View: the published state, a fleet together with the incarnations and health of its replicas.

And what all readers of a fleet ask of it: which protocols and clusters its pools have, and which
pool is the default of each form of requests in which only the body names the pool. Of the pools
that share a form exactly one is marked; a single pool is the default without the mark.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate_api.names import ClusterRef, Protocol
from xds_server.fleet.memo import ByIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from xds_server.fleet.findings import PublishedSick
    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec

PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")

LOG_SLOTS: Final = 8
"""Slots of Envoy's log sinks for up to as many pickers, workers counted singly."""


class Incarnation(NamedTuple):
    """Incarnation of a replica, and when it began."""

    number: int
    joined_unix_ms: int
    """Unix milliseconds; 0 = part of the first revision, and therefore warm."""


class CanaryMark(NamedTuple):
    """A rollout that runs in a pool, as pickers are told of it."""

    rollout: str
    """Its id."""
    canary: str
    stable: str
    weights: tuple[int, ...]
    """The canary's weight in each step; stable has the rest of ``total``."""
    total: int

    def step(self, pool: PoolSpec) -> int | None:
        """Return the number of the step that a pool's weights are of; ``None`` = of none."""
        shares = {each.name: each.weight for each in pool.variants}
        own = shares.get(self.canary, 0)
        if own + shares.get(self.stable, 0) != self.total or sum(shares.values()) != self.total:
            return None
        return self.weights.index(own) if own in self.weights else None


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
    canaries: Mapping[str, CanaryMark] = field(default_factory=dict)
    """The rollout that runs in each pool. Its step follows from the pool's weights, so that no
    publication tells of one without the other."""

    def incarnation(self, endpoint_id: str) -> Incarnation:
        """Return a replica's incarnation; an unlisted replica has incarnation 1 and is warm."""
        return Incarnation(*self.incarnations.get(endpoint_id, (1, 0)))


def address_of(endpoint: EndpointSpec, protocol: Protocol) -> str | None:
    """Return the endpoint's address for ``protocol``, ``None`` if it has none."""
    return endpoint.http if protocol == "http" else endpoint.grpc


@ByIdentity
def spoken(pool: PoolSpec) -> tuple[Protocol, ...]:
    """Return the protocols that any replica of the pool speaks, found or still to be found."""
    return tuple(p for p in PROTOCOLS if any(getattr(kind, p) for kind in pool.kinds))


def speaks(pool: PoolSpec, protocol: Protocol) -> bool:
    """Return whether any replica of the pool speaks ``protocol``."""
    return protocol in spoken(pool)


class Defaults(NamedTuple):
    """The default pool of each form."""

    grpc: str | None
    """Of gRPC requests; ``None`` if there is none."""
    http: str | None
    """Of HTTP requests that neither path nor model assigns; ``None`` if none or several speak
    HTTP and none is marked."""
    paths: Mapping[str, str | None]
    """Of requests to each of the pools' paths."""


@ByIdentity
def defaults_of(fleet: Fleet) -> Defaults:
    """Return the default pools."""
    sharing: dict[str, list[PoolSpec]] = {}
    for pool in fleet.pools:
        if pool.match.paths and speaks(pool, "http"):
            for path in dict.fromkeys(pool.match.paths):
                sharing.setdefault(path, []).append(pool)
    return Defaults(
        _default([pool for pool in fleet.pools if speaks(pool, "grpc")]),
        _default([pool for pool in fleet.pools if speaks(pool, "http")]),
        {path: _default(pools) for path, pools in sharing.items()},
    )


def _default(sharing: Sequence[PoolSpec]) -> str | None:
    if len(sharing) == 1:
        return sharing[0].name
    marked = [pool.name for pool in sharing if pool.default]
    return marked[0] if len(marked) == 1 else None


def server_pool(fleet: Fleet, protocol: Protocol) -> PoolSpec | None:
    """Return the pool for calls about the server as a whole: a default pool, else the first."""
    able = [pool for pool in fleet.pools if speaks(pool, protocol)]
    return next((pool for pool in able if pool.default), able[0] if able else None)


def clusters_of(pool: PoolSpec) -> Iterator[ClusterRef]:
    """Yield the clusters of a pool: one per variant and per protocol that its replicas speak."""
    for protocol in PROTOCOLS:
        if speaks(pool, protocol):
            for variant in pool.variants:
                yield ClusterRef(pool.name, variant.name, protocol)


def log_slots(addresses: Sequence[str]) -> tuple[str, ...]:
    """Return the pickers' addresses by their slots; empty text = a free slot.

    An address prefers a slot by its hash, so that it keeps it when others come or go.
    """
    distinct = list(dict.fromkeys(addresses))
    slots = [""] * (LOG_SLOTS * max(1, -(-len(distinct) // LOG_SLOTS)))
    for address in distinct:
        first = zlib.crc32(address.encode()) % LOG_SLOTS
        order = (*range(first, LOG_SLOTS), *range(first), *range(LOG_SLOTS, len(slots)))
        slots[next(slot for slot in order if not slots[slot])] = address
    return tuple(slots)
