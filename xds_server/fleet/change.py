"""Changes to a fleet at run time, and their merge with an edited fleet file. Pure.

Every function returns a new fleet. Pools that it does not change stay the same objects, which makes
them cheap for all that follows. None of the functions validates the result;
``xds_server.fleet.rules.fleet`` does.
"""

from __future__ import annotations

import difflib
import weakref
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import ValidationError

from tidegate_api.pools import MAX_WEIGHT_SUM
from xds_server.fleet.memo import ByIdentity, with_pools

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec
    from xds_server.fleet.model.resilience import Shadow


Section = Literal["circuit_breaker", "slow_start"]
_Flag = Literal["draining", "standby"]
_FLAGS: Final[tuple[_Flag, ...]] = ("draining", "standby")
MAX_DRAINED: Final = 4096
"""Most found replicas of one pool that operators drain."""

_NONE_FOUND: Final[Mapping[str, Collection[str]]] = MappingProxyType({})

SECTIONS: Final[tuple[Section, ...]] = ("circuit_breaker", "slow_start")
"""Sections of a pool whose fields operators can set at run time."""


class UnknownName(ValueError):  # noqa: N818 - reads as the sentence it is: raise UnknownName(...)
    """A name does not exist in the fleet; the message suggests existing ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = list(known)
        close = difflib.get_close_matches(name, names, 1)
        if close:
            hint = f"did you mean '{close[0]}'?"
        elif names:
            hint = f"there are {', '.join(sorted(names)[:10])}"
        else:
            hint = "there are none"
        super().__init__(f"no {kind} '{name[:128]}'; {hint}")


class BadChange(ValueError):  # noqa: N818 - as above
    """A change that is invalid for any fleet."""


def set_weights(
    fleet: Fleet,
    pool: str,
    weights: Mapping[str, int],
    expected: Mapping[str, int] | None = None,
) -> Fleet:
    """Return the fleet with these weights; variants that are not named keep theirs.

    Args:
        fleet: The fleet to change.
        pool: The pool's name.
        weights: Weights by variant.
        expected: The weights that must be in force; ``None`` = any.

    Raises:
        UnknownName: No such pool or variant.
        BadChange: No weights, one out of range, or others are in force than expected.
    """
    if not weights:
        raise BadChange("no weights given; write for example stable=90 canary=10")
    for name, weight in weights.items():
        if not 0 <= weight <= MAX_WEIGHT_SUM:
            raise BadChange(f"weight {weight} of '{name}' is not between 0 and {MAX_WEIGHT_SUM}")
    current = find_pool(fleet, pool)
    known = [variant.name for variant in current.variants]
    for name in weights:
        if name not in known:
            raise UnknownName(f"variant of pool '{pool}'", name, known)
    if expected is not None and {v.name: v.weight for v in current.variants} != dict(expected):
        raise BadChange(f"the weights of pool '{pool}' were changed meanwhile; look again")
    return _with_pool(fleet, current, _with_weights(current, weights))


def set_draining(
    fleet: Fleet, endpoint: str, draining: bool, found: Mapping[str, Collection[str]] = _NONE_FOUND
) -> Fleet:
    """Return the fleet with one replica draining, or no longer draining.

    Args:
        fleet: The fleet to change.
        endpoint: An endpoint id, which applies to every pool with this endpoint, or ``pool/id``.
        draining: The replica takes no new work.
        found: Ids of the found replicas by pool; they are listed in the pool's ``drained``.

    Raises:
        UnknownName: No such endpoint or pool.
        BadChange: ``drained`` would be longer than its bound.
    """
    pool_name, slash, wanted = endpoint.rpartition("/")
    pools = (find_pool(fleet, pool_name),) if slash else fleet.pools

    def listed(pool: PoolSpec) -> Iterator[str]:
        yield from (each.id for each in pool.endpoints)
        yield from found.get(pool.name, ())
        yield from pool.drained

    meant = [pool for pool in pools if wanted in listed(pool)]
    if not meant:
        kind = f"endpoint of pool '{pool_name}'" if slash else "endpoint"
        raise UnknownName(kind, wanted, dict.fromkeys(i for pool in pools for i in listed(pool)))
    for pool in meant:
        drained = _with_drained(
            _with_flags(pool, "draining", {wanted: draining}), wanted, draining, found
        )
        fleet = _with_pool(fleet, pool, drained)
    return fleet


def set_standby(fleet: Fleet, endpoint: str, standby: bool) -> Fleet:
    """Return the fleet with one written replica a standby, or no longer.

    Args:
        fleet: The fleet to change.
        endpoint: An endpoint id, which applies to every pool with this endpoint, or ``pool/id``.
        standby: It takes no requests until it is needed.

    Raises:
        UnknownName: No such endpoint or pool.
    """
    pool_name, slash, wanted = endpoint.rpartition("/")
    pools = (find_pool(fleet, pool_name),) if slash else fleet.pools
    meant = [pool for pool in pools if wanted in _flags(pool, "standby")]
    if not meant:
        kind = f"endpoint of pool '{pool_name}'" if slash else "endpoint"
        raise UnknownName(kind, wanted, dict.fromkeys(e.id for p in pools for e in p.endpoints))
    for pool in meant:
        fleet = _with_pool(fleet, pool, _with_flags(pool, "standby", {wanted: standby}))
    return fleet


def set_shadow(fleet: Fleet, pool: str, shadow: Shadow | None) -> Fleet:
    """Return the fleet with these copies of a pool's requests.

    Raises:
        UnknownName: No such pool.
    """
    current = find_pool(fleet, pool)
    return _with_pool(fleet, current, current.model_copy(update={"shadow": shadow}))


def set_section(fleet: Fleet, pool: str, section: Section, values: Mapping[str, float]) -> Fleet:
    """Return the fleet with these limits or slow start; fields that are not named keep theirs.

    Raises:
        UnknownName: No such pool.
        BadChange: No values, an unknown field, or a value out of range.
    """
    current = find_pool(fleet, pool)
    before = getattr(current, section)
    fields = type(before).model_fields
    if not values:
        raise BadChange(f"nothing given; {section} has {', '.join(fields)}")
    for name in values:
        if name not in fields:
            raise BadChange(f"{section} has no '{name[:64]}'; it has {', '.join(fields)}")
    try:
        after = type(before).model_validate({**before.model_dump(mode="json"), **values})
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        where = ".".join(map(str, first["loc"]))
        raise BadChange(f"{section}.{where}: {first['msg']}") from None
    return _with_pool(fleet, current, current.model_copy(update={section: after}))


def set_drop_overload(fleet: Fleet, pool: str, percent: float) -> Fleet:
    """Return the fleet in which Envoy rejects this percentage of the pool's requests.

    Raises:
        UnknownName: No such pool.
        BadChange: The percentage is out of range.
    """
    current = find_pool(fleet, pool)
    if not 0 <= percent <= 100:  # noqa: PLR2004 - a percentage
        raise BadChange(f"{percent:g} is no percentage; write a number between 0 and 100")
    return _with_pool(fleet, current, current.model_copy(update={"drop_overload": percent}))


def merge(last_file: Fleet | None, new_file: Fleet, live: Fleet) -> Fleet:
    """Return the live fleet merged with an edited fleet file.

    The file takes precedence, except for values that operators changed at run time and the edit did
    not: a pool's weights (as a whole, because a single weight has no meaning), its limits and its
    slow start (each as a whole), and whether an endpoint drains or is a standby.

    Args:
        last_file: The file as it was last applied; ``None`` if it never was.
        new_file: The file as it is now.
        live: The fleet in force.
    """
    if last_file is None:
        return new_file
    before = {pool.name: pool for pool in last_file.pools}
    now = {pool.name: pool for pool in live.pools}
    return with_pools(
        new_file,
        (_merged(pool, before.get(pool.name), now.get(pool.name)) for pool in new_file.pools),
    )


def _merged(pool: PoolSpec, old: PoolSpec | None, current: PoolSpec | None) -> PoolSpec:
    if old is None or current is None or pool is old is current:
        return pool
    last = _last_merge(current)
    if last and last[0]() is pool and last[1]() is old and (known := last[2]()) is not None:
        return known
    result = _with_live(pool, old, current)
    if result is not pool and result == current:
        result = current
    last[:] = map(weakref.ref, (pool, old, result))
    return result


@ByIdentity
def _last_merge(_: PoolSpec) -> list[weakref.ref[PoolSpec]]:
    """Return the last merge of a live pool: pool and file before, and the result."""
    return []


def _with_live(pool: PoolSpec, old: PoolSpec, current: PoolSpec) -> PoolSpec:
    if _weights(pool) == _weights(old) and _weights(current).keys() == _weights(pool).keys():
        pool = _with_weights(pool, _weights(current))
    sections: dict[str, Any] = {
        section: getattr(current, section)
        for section in SECTIONS
        if getattr(pool, section) == getattr(old, section)
    }
    if any(getattr(pool, section) != value for section, value in sections.items()):
        pool = pool.model_copy(update=sections)
    if pool.drained == old.drained != current.drained:
        pool = pool.model_copy(update={"drained": current.drained})
    for flag in _FLAGS:
        written, edited = _flags(old, flag), _flags(pool, flag)
        kept = {
            endpoint: state
            for endpoint, state in _flags(current, flag).items()
            if endpoint in edited and written.get(endpoint) == edited[endpoint]
        }
        pool = _with_flags(pool, flag, kept)
    return pool


def find_pool(fleet: Fleet, name: str) -> PoolSpec:
    """Return a pool.

    Raises:
        UnknownName: There is none of this name.
    """
    for pool in fleet.pools:
        if pool.name == name:
            return pool
    raise UnknownName("pool", name, (pool.name for pool in fleet.pools))


def _with_pool(fleet: Fleet, old: PoolSpec, new: PoolSpec) -> Fleet:
    return with_pools(fleet, (new if pool is old else pool for pool in fleet.pools))


def _weights(pool: PoolSpec) -> dict[str, int]:
    return {variant.name: variant.weight for variant in pool.variants}


def _flags(pool: PoolSpec, flag: _Flag) -> dict[str, bool]:
    return {endpoint.id: getattr(endpoint, flag) for endpoint in pool.endpoints}


def _with_weights(pool: PoolSpec, weights: Mapping[str, int]) -> PoolSpec:
    if all(weights.get(each.name, each.weight) == each.weight for each in pool.variants):
        return pool
    variants = tuple(
        variant.model_copy(update={"weight": weights.get(variant.name, variant.weight)})
        for variant in pool.variants
    )
    return pool.model_copy(update={"variants": variants})


def _with_flags(pool: PoolSpec, flag: _Flag, states: Mapping[str, bool]) -> PoolSpec:
    def changed(endpoint: EndpointSpec) -> EndpointSpec:
        was = getattr(endpoint, flag)
        state = states.get(endpoint.id, was)
        return endpoint if state == was else endpoint.model_copy(update={flag: state})

    if all(states.get(each.id, now := getattr(each, flag)) == now for each in pool.endpoints):
        return pool
    return pool.model_copy(update={"endpoints": tuple(map(changed, pool.endpoints))})


def _with_drained(
    pool: PoolSpec, endpoint: str, draining: bool, found: Mapping[str, Collection[str]]
) -> PoolSpec:
    if any(each.id == endpoint for each in pool.endpoints):
        return pool
    if draining == (endpoint in pool.drained):
        return pool
    if draining and endpoint not in found.get(pool.name, ()):
        return pool
    drained = tuple(each for each in pool.drained if each != endpoint)
    if draining:
        if len(drained) >= MAX_DRAINED:
            raise BadChange(f"pool '{pool.name}' drains {MAX_DRAINED} found replicas already")
        drained = (*drained, endpoint)
    return pool.model_copy(update={"drained": drained})
