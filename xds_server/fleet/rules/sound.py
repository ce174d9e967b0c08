"""Quick proof that a changed fleet breaks no rule, in the time that its changed pools take.

Rules:

1. ``sound`` is true only if ``problems`` would return nothing. It may be false without a reason:
   then ``problems`` decides, and words what is wrong.
2. A pool is judged by itself once, and found again by its identity. Of a judged pool only its
   *claims* remain: what no other pool may contradict. The claims of all pools together are as
   large as the fleet, but putting them into one table takes well under a microsecond each.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, NamedTuple

from xds_server.fleet.model.fields import split_host_port
from xds_server.fleet.parts.identity import ByIdentity
from xds_server.fleet.rules.edge import edge
from xds_server.fleet.rules.fleet import alone, defaults, front
from xds_server.fleet.rules.kv_events import kv_events
from xds_server.fleet.rules.traffic import traffic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xds_server.fleet.model.fleet import Fleet, PoolSpec


class _Summary(NamedTuple):
    """What is known of a pool from judging it by itself."""

    sound: bool
    """It breaks no rule by itself."""
    claims: Mapping[tuple[str, str], Any]
    """Kind and name -> what the pool says about it; all pools must say the same."""
    addresses: frozenset[str]
    """Addresses of its replicas."""
    local_ports: frozenset[int]
    """Ports of the replicas on loopback addresses."""
    has_events: bool
    """A replica publishes KV events."""


def sound(fleet: Fleet) -> bool:
    """Return whether the fleet is sure to break no rule; see the module's rules."""
    pools = [_summary(pool) for pool in fleet.pools]
    if not all(pool.sound for pool in pools) or not _agree(pool.claims for pool in pools):
        return False
    if len({pool.name for pool in fleet.pools}) < len(pools):
        return False
    if _meets_front(fleet, pools):
        return False
    found = [defaults(fleet), edge(fleet), front(fleet)]
    if any(pool.shadow for pool in fleet.pools):
        found.append(traffic(fleet))
    if any(pool.has_events for pool in pools):
        found.append(kv_events(fleet))
    return not any(True for problems in found for _ in problems)


@ByIdentity
def _summary(pool: PoolSpec) -> _Summary:
    claims: dict[tuple[str, str], Any] = {}
    addresses: set[str] = set()
    for each in pool.endpoints:
        claims["id", each.id] = (each.http, each.grpc, each.metrics, each.telemetry, each.device)
        for address in (each.http, each.grpc, each.metrics):
            if address is not None:
                claims["address", address] = each.id
        addresses.update(address for address in (each.http, each.grpc) if address is not None)
    for model in pool.match.models:
        claims["model", model] = pool.name
    for path in () if pool.match.models else pool.match.paths:
        claims["path of all models", path] = pool.name
    split = (split_host_port(address) for address in addresses)
    return _Summary(
        sound=next(alone(pool), None) is None,
        claims=claims,
        addresses=frozenset(addresses),
        local_ports=frozenset(p for host, p in split if ipaddress.ip_address(host).is_loopback),
        has_events=any(each.telemetry.kv_events is not None for each in pool.endpoints),
    )


def _agree(claims: Iterable[Mapping[tuple[str, str], Any]]) -> bool:
    """Return whether no two pools contradict each other."""
    each = list(claims)
    every: dict[tuple[str, str], Any] = {}
    for one in each:
        every.update(one)
    if len(every) == sum(map(len, each)):
        return True  # no two pools speak of the same thing
    return all(every[key] == value for one in each for key, value in one.items())


def _meets_front(fleet: Fleet, pools: Iterable[_Summary]) -> bool:
    """Return whether a replica's address may be that of the listener or of a picker."""
    listener, pickers = fleet.listener.address, frozenset(fleet.pickers.addresses)
    host, port = split_host_port(listener)
    everywhere = ipaddress.ip_address(host).is_unspecified
    return any(
        listener in pool.addresses
        or not pickers.isdisjoint(pool.addresses)
        or (everywhere and port in pool.local_ports)
        for pool in pools
    )
