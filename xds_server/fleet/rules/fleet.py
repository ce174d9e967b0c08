"""Validation of a fleet by rules over several fields.

Rules:

1. ``problems`` checks all rules: a fleet for which it returns nothing can be published.
2. Every problem names its location and a correction; all problems are reported at once.
3. The work grows with the size of the fleet, not with its square: a small fleet would otherwise
   stop the server. A pool is judged by itself once (``ByIdentity``), and compared with others only
   if it has a replica's id or address in common with one of them. Of weights the rules ask whether
   each is 0, and the sum: a fleet that differs from a sound one in nothing else is not read again.
4. In some request *forms* (gRPC, and the pools' extra paths) only the body names the pool. A pool
   serves a form if it has a replica that speaks its protocol. Of the pools that share a form,
   exactly one must be marked as its default; a single pool is the default without the mark.
"""

from __future__ import annotations

import functools
import ipaddress
from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate_api.paths import ANY_MODEL_PATHS
from tidegate_api.pools import MAX_WEIGHT_SUM
from xds_server.fleet.guards.filters import filters_of_pool
from xds_server.fleet.guards.fronts import addresses, front_rules
from xds_server.fleet.guards.patches import patches_of_pool
from xds_server.fleet.guards.tokens import shared_replicas
from xds_server.fleet.memo import ByIdentity
from xds_server.fleet.model.fields import (
    RESERVED_HEADER_PREFIXES,
    is_named,
    split_host_port,
)
from xds_server.fleet.rules.edge import edge
from xds_server.fleet.rules.kv_events import kv_events
from xds_server.fleet.rules.problem import Location, Problem, listed, repeated, spell
from xds_server.fleet.rules.traffic import traffic
from xds_server.fleet.rules.variants import constraints, sources, variants
from xds_server.fleet.view import speaks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec

_OWN_PREFIXES = ("/v2/", "/inference.GRPCInferenceService/")
_ADDRESSES: Final = 65_536
"""Addresses whose judgement is kept, some megabytes: a pool of many replicas changes in few."""
_RESERVED_POOL_NAMES = frozenset({"unnamed", "unpicked", "unserved"})  # first part of routes' names


def problems(fleet: Fleet, before: Fleet | None = None) -> list[Problem]:
    """Return all broken rules, in the order of the file; empty = the fleet can be published.

    Args:
        fleet: The fleet.
        before: A fleet that was judged before, of which it may be an edit.
    """
    known = _judged(fleet)
    if not known:
        known.append([] if before is not None and _is_reweighted(before, fleet) else _found(fleet))
    return [*known[0]]


@ByIdentity
def _judged(_: Fleet) -> list[list[Problem]]:
    """Return a place for the problems of a fleet; empty = it was not judged."""
    return []


def _is_reweighted(sound: Fleet, fleet: Fleet) -> bool:
    """Return whether a fleet breaks no rule: a sound one differs in sizes of weights alone."""
    return (
        _judged(sound) == [[]]
        and _drawn(sound) == _drawn(fleet)
        and all(sum(v.weight for v in p.variants) <= MAX_WEIGHT_SUM for p in fleet.pools)
    )


def _drawn(fleet: Fleet) -> Fleet:
    return fleet.model_copy(update={"pools": tuple(map(_drawn_pool, fleet.pools))})


@ByIdentity
def _drawn_pool(pool: PoolSpec) -> PoolSpec:
    """Return the pool with weights that say only whether a variant has a share."""
    return pool.model_copy(
        update={
            "variants": tuple(
                variant.model_copy(update={"weight": min(variant.weight, 1)})
                for variant in pool.variants
            )
        }
    )


def _found(fleet: Fleet) -> list[Problem]:
    taken = TakenAddresses(addresses(fleet.listener), fleet.pickers.addresses)
    wrong = [at for at, pool in enumerate(fleet.pools) if not _sound(pool, taken)]
    entangled = sorted({*wrong, *_entangled(fleet)})
    found = [
        *_names(fleet),
        *(problem for at in wrong for problem in _alone(at, fleet.pools[at], taken)),
        *_identities(fleet, entangled),
        *shared_replicas(fleet),
        *_addresses(fleet, entangled),
        *_models(fleet),
        *_paths_alone(fleet),
        *defaults(fleet),
        *front(fleet),
        *traffic(fleet),
        *kv_events(fleet),
        *edge(fleet),
    ]
    return sorted(found, key=lambda problem: _order(problem.location))


class TakenAddresses(NamedTuple):
    """Addresses that no replica can have."""

    listeners: tuple[str, ...]
    pickers: tuple[str, ...]


def _alone(at: int, pool: PoolSpec, taken: TakenAddresses) -> Iterator[Problem]:
    """Yield the rules that a pool breaks whatever other pools the fleet contains."""
    yield from _pool(("pools", at), pool)
    yield from _behind(("pools", at), pool, taken)


@ByIdentity
def _sound(pool: PoolSpec, taken: TakenAddresses) -> bool:
    """Return whether a pool breaks no rule by itself, and no address stands in it twice."""
    return _names_of(pool).once and next(_alone(0, pool, taken), None) is None


def _addresses_of(endpoint: EndpointSpec) -> frozenset[str]:
    each = (endpoint.http, endpoint.grpc, endpoint.metrics)
    return frozenset(address for address in each if address is not None)


class _Names(NamedTuple):
    """Ids and addresses of a pool's replicas."""

    all: frozenset[str]
    once: bool
    """No two replicas have an address in common."""


@ByIdentity
def _names_of(pool: PoolSpec) -> _Names:
    each_of = [_addresses_of(endpoint) for endpoint in pool.endpoints]
    found = frozenset().union(*each_of)
    once = sum(map(len, each_of)) == len(found)
    return _Names(found | {endpoint.id for endpoint in pool.endpoints}, once)


def _entangled(fleet: Fleet) -> Iterator[int]:
    """Yield the positions of the pools that have a replica's id or address in common."""
    seen, twice = set[str](), set[str]()
    for pool in fleet.pools:
        names = _names_of(pool).all
        twice |= seen & names
        seen |= names
    for position, pool in enumerate(fleet.pools):
        if twice and not twice.isdisjoint(_names_of(pool).all):
            yield position


def _order(location: Location) -> tuple[tuple[int, str], ...]:
    return tuple((part, "") if isinstance(part, int) else (-1, part) for part in location)


def _names(fleet: Fleet) -> Iterator[Problem]:
    yield from repeated([pool.name for pool in fleet.pools], ("pools",), "name", "pool name")
    for position, pool in enumerate(fleet.pools):
        if pool.name in _RESERVED_POOL_NAMES:
            yield Problem(
                ("pools", position, "name"), f"the name '{pool.name}' is reserved; choose another"
            )


def _pool(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    match = pool.match
    yield from repeated(match.models, (*at, "match", "models"), None, "model")
    yield from repeated(match.paths, (*at, "match", "paths"), None, "path")
    for position, path in enumerate(match.paths):
        if path.startswith(_OWN_PREFIXES):
            yield Problem(
                (*at, "match", "paths", position),
                f"'{path}' is a path of Triton's own API, which `models` covers; remove it",
            )
    of_grpc = pool.kinds and not speaks(pool, "http")
    if of_grpc and match.paths not in ((), ANY_MODEL_PATHS):
        yield Problem(
            (*at, "match", "paths"),
            f"paths are HTTP, but no replica of pool '{pool.name}' has an `http` address; "
            "give one or remove the paths",
        )
    if pool.routing.session_header.startswith(RESERVED_HEADER_PREFIXES):
        yield Problem(
            (*at, "routing", "session_header"),
            f"header '{pool.routing.session_header}' is reserved and stripped from client "
            "requests; choose another name",
        )
    if (pool.routing.timeout_header or "").startswith(RESERVED_HEADER_PREFIXES):
        yield Problem(
            (*at, "routing", "timeout_header"),
            f"header '{pool.routing.timeout_header}' is reserved; tidegate-timeout-ms is read "
            "without it",
        )
    yield from variants(at, pool)
    yield from _endpoints(at, pool)
    yield from sources(at, pool)
    yield from constraints(at, pool)
    yield from filters_of_pool(at, pool)
    yield from patches_of_pool(at, pool)


def _endpoints(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    ids = [endpoint.id for endpoint in pool.endpoints]
    yield from repeated(ids, (*at, "endpoints"), "id", "endpoint id")
    names = dict.fromkeys(variant.name for variant in pool.variants)
    for position, endpoint in enumerate(pool.endpoints):
        if endpoint.variant is not None and endpoint.variant not in names:
            yield Problem(
                (*at, "endpoints", position, "variant"),
                f"pool '{pool.name}' has no variant '{endpoint.variant}'; it has {listed(names)}",
            )
        for field in ("http", "grpc"):
            address = getattr(endpoint, field)
            if address is not None and (reason := _not_connectable(address)):
                yield Problem((*at, "endpoints", position, field), reason)


@functools.lru_cache(maxsize=_ADDRESSES)
def _not_connectable(address: str) -> str | None:
    ip = None if is_named(address) else ipaddress.ip_address(split_host_port(address)[0])
    if ip is not None and (ip.is_unspecified or ip.is_multicast):
        return f"it is impossible to connect to {address}; write the address of one host"
    return None


def _all_endpoints(
    fleet: Fleet, positions: Iterable[int]
) -> Iterator[tuple[Location, EndpointSpec]]:
    for i in positions:
        for j, endpoint in enumerate(fleet.pools[i].endpoints):
            yield ("pools", i, "endpoints", j), endpoint


def _identities(fleet: Fleet, positions: Iterable[int]) -> Iterator[Problem]:
    first: dict[str, tuple[Location, EndpointSpec]] = {}
    for at, endpoint in _all_endpoints(fleet, positions):
        known_at, known = first.setdefault(endpoint.id, (at, endpoint))
        if known_at[:2] == at[:2]:
            continue  # itself, or a repetition within one pool, which has a message of its own
        for field in ("http", "grpc", "metrics", "telemetry", "device"):
            here, there = getattr(endpoint, field), getattr(known, field)
            if here != there:
                yield Problem(
                    (*at, field),
                    f"endpoint '{endpoint.id}' is one replica, but {spell(known_at)} gives "
                    f"{there or 'nothing'} here; write the same in each pool or use another id",
                )


def _addresses(fleet: Fleet, positions: Iterable[int]) -> Iterator[Problem]:
    owner: dict[str, tuple[Location, str]] = {}
    for at, endpoint in _all_endpoints(fleet, positions):
        for field in ("http", "grpc", "metrics"):
            value = getattr(endpoint, field)
            if value is None:
                continue
            known_at, known_id = owner.setdefault(value, ((*at, field), endpoint.id))
            if known_id != endpoint.id:
                yield Problem(
                    (*at, field),
                    f"{value} already belongs to endpoint '{known_id}' ({spell(known_at)}); "
                    "two replicas cannot share it, so correct one of them or give both one id",
                )


def _models(fleet: Fleet) -> Iterator[Problem]:
    """Yield models in several pools that no path tells apart.

    Only paths of `match.paths` do: a gRPC call has none, and the first pool takes Triton's own.
    """
    owners: dict[str, tuple[int, ...]] = {}
    splits: dict[tuple[int, ...], str | None] = {}
    for i, pool in enumerate(fleet.pools):
        for j, model in enumerate(pool.match.models):
            known = owners.get(model, ())
            if i in known:
                continue
            together = owners[model] = (*known, i)
            if known and together not in splits:
                splits[together] = _not_split([fleet.pools[each] for each in together])
            reason = splits.get(together)
            if reason is not None:
                yield Problem(
                    ("pools", i, "match", "models", j),
                    f"model '{model}' already belongs to pool '{fleet.pools[known[0]].name}', and "
                    f"{reason}; use variants for a model's versions",
                )


def _not_split(pools: Sequence[PoolSpec]) -> str | None:
    """Return why paths do not tell pools with one model apart; the last pool is the new one."""
    *others, last = pools
    bare = next((pool.name for pool in pools if not pool.match.paths), None)
    if bare is not None:
        return f"pool '{bare}' has no `paths` that would tell them apart"
    grpc = next((pool.name for pool in pools if speaks(pool, "grpc")), None)
    if grpc is not None:
        return f"pool '{grpc}' has gRPC replicas, whose calls have no path to tell them apart"
    taken = {path: pool.name for pool in others for path in pool.match.paths}
    twice = next((path for path in last.match.paths if path in taken), None)
    return None if twice is None else f"pool '{taken[twice]}' has the path {twice} too"


def _paths_alone(fleet: Fleet) -> Iterator[Problem]:
    """Yield paths on which several pools take every model."""
    owner: dict[str, str] = {}
    for i, pool in enumerate(fleet.pools):
        for j, path in enumerate(pool.match.paths if not pool.match.models else ()):
            known = owner.setdefault(path, pool.name)
            if known != pool.name:
                yield Problem(
                    ("pools", i, "match", "paths", j),
                    f"pools '{known}' and '{pool.name}' name no models, so both take every model "
                    f"on {path}; name the models of one",
                )


def defaults(fleet: Fleet) -> Iterator[Problem]:
    """Yield the forms that several pools share without exactly one default."""
    forms = [
        (
            "have gRPC replicas, and only its body says which one a gRPC request means",
            [i for i, pool in enumerate(fleet.pools) if speaks(pool, "grpc")],
        )
    ]
    of_path: dict[str, list[int]] = {}
    for i, pool in enumerate(fleet.pools):
        if speaks(pool, "http"):
            for path in dict.fromkeys(pool.match.paths):
                of_path.setdefault(path, []).append(i)
    forms += [
        (f"share the path {path}, and only its body says which one a request means", sharing)
        for path, sharing in of_path.items()
    ]
    for what, sharing in forms:
        marked = [i for i in sharing if fleet.pools[i].default]
        if len(sharing) < 2 or len(marked) == 1:  # noqa: PLR2004 - a pool alone is the default
            continue
        names = listed(fleet.pools[i].name for i in sharing)
        if marked:
            both = listed(fleet.pools[i].name for i in marked)
            yield Problem(
                ("pools", marked[1], "default"),
                f"pools {names} {what}, but {both} are all its default; "
                "leave `default: true` on one of them",
            )
        else:
            yield Problem(
                ("pools", sharing[0], "default"),
                f"pools {names} {what}; write `default: true` on one of them, "
                "which takes such requests when no picker answers",
            )


def front(fleet: Fleet) -> Iterator[Problem]:
    """Yield the problems of listener and pickers among themselves."""
    pickers = fleet.pickers
    at: Location = ("pickers", "addresses")
    yield from front_rules(fleet, defaults)
    yield from repeated(pickers.addresses, at, None, "picker address")
    if not pickers.addresses and not pickers.fail_open:
        yield Problem(
            at,
            "without pickers and with `fail_open: false` every request would fail; "
            "name a picker or set `fail_open: true`",
        )
    closed = [each.name for each in fleet.pools if each.routing.without_picker == "closed"]
    if not pickers.addresses and pickers.fail_open and closed:
        yield Problem(
            at,
            f"without pickers every request of pool {closed[0]!r} would fail, as its"
            " `routing.without_picker` is `closed`; name a picker or set it to `open`",
        )
    for position, address in enumerate(pickers.addresses):
        if reason := _not_connectable(address):
            yield Problem((*at, position), reason)
        if any(_collides(own, address) for own in addresses(fleet.listener)):
            yield Problem(
                (*at, position),
                f"{address} is Envoy's own address (listener.address); use another port",
            )


def _behind(at: Location, pool: PoolSpec, taken: TakenAddresses) -> Iterator[Problem]:
    """Yield the replicas whose address is that of the listener or of a picker."""
    for number, endpoint in enumerate(pool.endpoints):
        where: Location = (*at, "endpoints", number)
        for field in ("http", "grpc"):
            address = getattr(endpoint, field)
            if address is None:
                continue
            if any(_collides(own, address) for own in taken.listeners):
                yield Problem(
                    (*where, field),
                    f"{address} is Envoy's own address (listener.address), so requests would loop; "
                    "use another port",
                )
            if address in taken.pickers:
                yield Problem(
                    (*where, field),
                    f"{address} is a picker's (pickers.addresses); write the replica's own port",
                )


def _collides(listener: str, other: str) -> bool:
    """Return whether ``other`` is an address of the listener, as far as the fleet shows it."""
    if listener == other:
        return True
    if is_named(other):
        return False  # an address that it turns out to have is refused then
    host, port = split_host_port(listener)
    other_host, other_port = split_host_port(other)
    return (
        port == other_port
        and ipaddress.ip_address(host).is_unspecified
        and ipaddress.ip_address(other_host).is_loopback
    )
