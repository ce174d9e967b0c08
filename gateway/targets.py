"""Which replicas a question goes to. Pure.

Rules:

1. A replica of several pools is one replica. It is asked at the address of the question's protocol.
2. A question about a model goes to the replicas of the pools that list it; if none does, to all:
   what a pool does not list, such as the parts of an ensemble, may be loaded all the same.
3. At most ``MAX_REPLICAS`` replicas are asked, in the order of the pools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ext_proc.routing.values.pool import EndpointKey, Pool
    from tidegate_api.names import Protocol
    from tidegate_common.upstream.contexts import ReplicaTls

MAX_REPLICAS: Final = 256


class AskedReplica(NamedTuple):
    """A replica to ask."""

    key: EndpointKey
    address: str
    """``ip:port``."""
    pools: frozenset[str]
    """The pools that it is in, of those in sight."""
    tls: ReplicaTls | None = None
    """TLS that it speaks; ``None`` = it speaks plain."""


class AskedReplicas(NamedTuple):
    """The replicas to ask."""

    asked: tuple[AskedReplica, ...]
    unasked: int
    """Replicas above the bound."""


class UnknownReplicaError(LookupError):
    """No replica in sight has this id."""


def in_sight(pools: Mapping[str, Pool], names: frozenset[str] | None) -> tuple[Pool, ...]:
    """Return the pools of these names, all for ``None``, in the order of their names."""
    return tuple(pool for name, pool in sorted(pools.items()) if names is None or name in names)


def about(pools: Iterable[Pool], model: str) -> tuple[Pool, ...]:
    """Return the pools that list a model; all if none does."""
    every = tuple(pools)
    return tuple(pool for pool in every if model in pool.models) or every


def replicas_of(pools: Iterable[Pool], protocol: Protocol, endpoint: str = "") -> AskedReplicas:
    """Return the replicas to ask.

    Args:
        pools: The pools in sight.
        protocol: Protocol of the question.
        endpoint: Only the replica of this id; empty = all.

    Raises:
        UnknownReplicaError: There is no such replica, or it does not speak the protocol.
    """
    found: dict[EndpointKey, tuple[str, set[str], ReplicaTls | None]] = {}
    for pool in pools:
        for each in pool.endpoints:
            address = each.address(protocol)
            if address is not None and (not endpoint or each.key.id == endpoint):
                known = found.setdefault(each.key, (address, set(), pool.upstream_tls))
                known[1].add(pool.name)
    if endpoint and not found:
        raise UnknownReplicaError(endpoint)
    every = tuple(
        AskedReplica(key, address, frozenset(names), tls)
        for key, (address, names, tls) in found.items()
    )
    return AskedReplicas(every[:MAX_REPLICAS], len(every[MAX_REPLICAS:]))
