"""Quick proof that a changed fleet breaks no rule, in the time that its changed pools take.

Rules:

1. ``sound`` is true only if ``problems`` would return nothing. It may be false without a reason:
   then ``problems`` decides, and words what is wrong.
2. A pool is judged by itself once, and found again by its identity. Of a judged pool only its
   *claims* remain: what no other pool may contradict.
3. After a sound fleet only the changed pools are looked at: their claims are held against the table
   of all claims, and rules over all pools are judged again if what they depend on has changed.
"""

from __future__ import annotations

import functools
import ipaddress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xds_server.fleet.guards.fronts import addresses
from xds_server.fleet.guards.tokens import guard_of
from xds_server.fleet.model.fields import is_named, split_host_port
from xds_server.fleet.parts.defaults import forms_of
from xds_server.fleet.parts.identity import ByIdentity
from xds_server.fleet.parts.successive import Successive
from xds_server.fleet.rules.edge import edge
from xds_server.fleet.rules.fleet import alone, defaults, front
from xds_server.fleet.rules.kv_events import kv_events
from xds_server.fleet.rules.traffic import traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from xds_server.fleet.model.fleet import Fleet, PoolSpec
    from xds_server.fleet.model.telemetry import KvEventsSpec
    from xds_server.fleet.parts.successive import Changes
    from xds_server.fleet.rules.problem import Problem


_ADDRESSES: Final = 65_536
"""Addresses of which it is kept whether they are on this host."""


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


class _Claims(NamedTuple):
    """The claims of several pools that do not contradict each other."""

    values: dict[tuple[str, str], Any]
    several: dict[tuple[str, str], int]
    """How many pools make a claim, of those that more than one makes."""


class _Judged(NamedTuple):
    """The verdict on a fleet."""

    sound: bool
    of_pools: tuple[Mapping[tuple[str, str], Any], ...] = ()
    """The claims of each pool."""
    claims: _Claims | None = None
    """All of them; ``None`` = not made yet."""


_UNSOUND: Final = _Judged(sound=False)


def sound(fleet: Fleet) -> bool:
    """Return whether the fleet is sure to break no rule; see the module's rules."""
    return _judge(fleet).sound


def _whole(fleet: Fleet) -> _Judged:
    pools = [_summary(pool) for pool in fleet.pools]
    if not all(pool.sound for pool in pools) or not _agree(pool.claims for pool in pools):
        return _UNSOUND
    if len({pool.name for pool in fleet.pools}) < len(pools):
        return _UNSOUND
    if _meets_front(fleet, pools):
        return _UNSOUND
    found = [defaults(fleet), edge(fleet), front(fleet), _shadows(fleet)]
    if any(pool.has_events for pool in pools):
        found.append(kv_events(fleet))
    if any(True for problems in found for _ in problems):
        return _UNSOUND
    return _Judged(sound=True, of_pools=tuple(pool.claims for pool in pools))


def _stepped(before: _Judged, changes: Changes, fleet: Fleet) -> _Judged | None:
    if not before.sound:
        return None
    pools = [_summary(each.now) for each in changes]
    if not all(pool.sound for pool in pools) or _meets_front(fleet, pools):
        return _UNSOUND
    for depends, rule in _RULES:
        if any(depends(each.was) != depends(each.now) for each in changes) and any(
            True for _ in rule(fleet)
        ):
            return _UNSOUND
    of_pools, claims = list(before.of_pools), before.claims
    for each, pool in zip(changes, pools, strict=True):
        of_pools[each.position] = pool.claims
    new = [(before.of_pools[each.position], of_pools[each.position]) for each in changes]
    if any(was != now for was, now in new):
        claims = _claimed(claims or _together(before.of_pools), new)
        if claims is None:
            return _UNSOUND
    return _Judged(sound=True, of_pools=tuple(of_pools), claims=claims)


_judge: Final = Successive(_whole, _stepped)


def _together(pools: Iterable[Mapping[tuple[str, str], Any]]) -> _Claims:
    made = _Claims({}, {})
    for claims in pools:
        _add(made, claims.items())
    return made


def _claimed(
    before: _Claims,
    new: Iterable[tuple[Mapping[tuple[str, str], Any], Mapping[tuple[str, str], Any]]],
) -> _Claims | None:
    """Return the claims after some pools changed theirs; ``None`` if they contradict others."""
    made = _Claims(before.values.copy(), before.several.copy())
    changed = [
        ([key for key in was if key not in now or was[key] != now[key]], was, now)
        for was, now in new
    ]
    for gone, _, _ in changed:
        for key in gone:
            count = made.several.pop(key, 1) - 1
            if count > 1:
                made.several[key] = count
            elif not count:
                del made.values[key]
    for _, was, now in changed:
        fresh = [(key, here) for key, here in now.items() if key not in was or was[key] != here]
        if not _add(made, fresh):
            return None
    return made


def _add(claims: _Claims, fresh: Iterable[tuple[tuple[str, str], Any]]) -> bool:
    """Add the claims of a pool; return whether they contradict none."""
    values, several = claims
    for key, value in fresh:
        if key not in values:
            values[key] = value
        elif values[key] != value:
            return False
        else:
            several[key] = several.get(key, 1) + 1
    return True


@ByIdentity
def _summary(pool: PoolSpec) -> _Summary:
    claims: dict[tuple[str, str], Any] = {}
    addresses: set[str] = set()
    for each in pool.endpoints:
        claims["id", each.id] = (
            *(each.http, each.grpc, each.metrics, each.telemetry, each.device),
            guard_of(pool),
        )
        for address in (each.http, each.grpc, each.metrics):
            if address is not None:
                claims["address", address] = each.id
        addresses.update(address for address in (each.http, each.grpc) if address is not None)
    for source in pool.endpoints_from:
        claims.update((("source", each), guard_of(pool)) for each in source.reaches)
    for model in pool.match.models:
        claims["model", model] = pool.name
    for path in () if pool.match.models else pool.match.paths:
        claims["path of all models", path] = pool.name
    return _Summary(
        sound=next(alone(pool), None) is None,
        claims=claims,
        addresses=frozenset(addresses),
        local_ports=frozenset(map(_local_port, addresses)) - {0},
        has_events=any(each.telemetry.kv_events is not None for each in pool.endpoints),
    )


@functools.lru_cache(maxsize=_ADDRESSES)
def _local_port(address: str) -> int:
    """Return the port of an address on this host; 0 if it is another host's, or a name's."""
    if is_named(address):
        return 0
    host, port = split_host_port(address)
    return port if ipaddress.ip_address(host).is_loopback else 0


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
    """Return whether a replica's address may be that of a listener or of a picker."""
    taken = frozenset((*addresses(fleet.listener), *fleet.pickers.addresses))
    split = map(split_host_port, addresses(fleet.listener))
    ports = frozenset(p for host, p in split if ipaddress.ip_address(host).is_unspecified)
    return any(
        not taken.isdisjoint(pool.addresses) or not ports.isdisjoint(pool.local_ports)
        for pool in pools
    )


def _shadows(fleet: Fleet) -> Iterable[Problem]:
    return traffic(fleet) if any(pool.shadow for pool in fleet.pools) else ()


def _edge_of(pool: PoolSpec) -> object:
    pins = [sorted(variant.match.headers) for variant in pool.variants]
    return pins, pool.routing.session_header, pool.match.paths, guard_of(pool)


def _front_of(pool: PoolSpec) -> object:
    return forms_of(pool), _ids(pool), [source.reaches for source in pool.endpoints_from]


def _traffic_of(pool: PoolSpec) -> object:
    variants = [(variant.name, bool(variant.weight)) for variant in pool.variants]
    return pool.shadow, variants, _spoken_by(pool)


def _events_of(pool: PoolSpec) -> object:
    return pool.match.models, _events(pool)


@ByIdentity
def _spoken_by(pool: PoolSpec) -> frozenset[tuple[str, bool, bool]]:
    return frozenset((pool.variant_of(e), bool(e.http), bool(e.grpc)) for e in pool.endpoints)


@ByIdentity
def _ids(pool: PoolSpec) -> frozenset[str]:
    return frozenset(each.id for each in pool.endpoints)


@ByIdentity
def _events(pool: PoolSpec) -> list[tuple[str, KvEventsSpec]]:
    return [(e.id, found) for e in pool.endpoints if (found := e.telemetry.kv_events) is not None]


_RULES: Final[tuple[tuple[Callable[[PoolSpec], object], Callable[[Fleet], Iterable[Any]]], ...]] = (
    (forms_of, defaults),
    (_edge_of, edge),
    (_front_of, front),
    (_traffic_of, _shadows),
    (_events_of, kv_events),
)
"""Rules over all pools, and on what of each pool they depend."""
