"""Changes to a fleet at run time, and their merge with an edited fleet file. Pure.

Every function returns a new fleet. Pools that it does not change stay the same objects, which makes
them cheap for all that follows. None of the functions validates the result;
``xds_server.fleet.rules.fleet`` does.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import ValidationError

from tidegate_api.pools import MAX_WEIGHT_SUM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec


Section = Literal["circuit_breaker", "slow_start"]
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


def set_weights(fleet: Fleet, pool: str, weights: Mapping[str, int]) -> Fleet:
    """Return the fleet with these weights; variants that are not named keep theirs.

    Raises:
        UnknownName: No such pool or variant.
        BadChange: No weights, or one out of range.
    """
    if not weights:
        raise BadChange("no weights given; write for example stable=90 canary=10")
    for name, weight in weights.items():
        if not 0 <= weight <= MAX_WEIGHT_SUM:
            raise BadChange(f"weight {weight} of '{name}' is not between 0 and {MAX_WEIGHT_SUM}")
    current = _find_pool(fleet, pool)
    known = [variant.name for variant in current.variants]
    for name in weights:
        if name not in known:
            raise UnknownName(f"variant of pool '{pool}'", name, known)
    return _with_pools(fleet, lambda p: _with_weights(p, weights) if p.name == current.name else p)


def set_draining(fleet: Fleet, endpoint: str, draining: bool) -> Fleet:
    """Return the fleet with one replica draining, or no longer draining.

    Args:
        fleet: The fleet to change.
        endpoint: An endpoint id, which applies to every pool with this endpoint, or ``pool/id``.
        draining: The replica takes no new work.

    Raises:
        UnknownName: No such endpoint or pool.
    """
    pool_name, slash, wanted = endpoint.rpartition("/")
    pools = (_find_pool(fleet, pool_name),) if slash else fleet.pools
    known = dict.fromkeys(e.id for pool in pools for e in pool.endpoints)
    if wanted not in known:
        kind = f"endpoint of pool '{pool_name}'" if slash else "endpoint"
        raise UnknownName(kind, wanted, known)
    meant = {pool.name for pool in pools}
    return _with_pools(
        fleet,
        lambda p: _with_draining(p, {wanted: draining}) if p.name in meant else p,
    )


def set_section(fleet: Fleet, pool: str, section: Section, values: Mapping[str, float]) -> Fleet:
    """Return the fleet with these limits or slow start; fields that are not named keep theirs.

    Raises:
        UnknownName: No such pool.
        BadChange: No values, an unknown field, or a value out of range.
    """
    current = _find_pool(fleet, pool)
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
    return _with_pools(
        fleet, lambda p: p.model_copy(update={section: after}) if p.name == current.name else p
    )


def set_drop_overload(fleet: Fleet, pool: str, percent: float) -> Fleet:
    """Return the fleet in which Envoy rejects this percentage of the pool's requests.

    Raises:
        UnknownName: No such pool.
        BadChange: The percentage is out of range.
    """
    current = _find_pool(fleet, pool)
    if not 0 <= percent <= 100:  # noqa: PLR2004 - a percentage
        raise BadChange(f"{percent:g} is no percentage; write a number between 0 and 100")
    return _with_pools(
        fleet,
        lambda p: p.model_copy(update={"drop_overload": percent}) if p.name == current.name else p,
    )


def merge(last_file: Fleet | None, new_file: Fleet, live: Fleet) -> Fleet:
    """Return the live fleet merged with an edited fleet file.

    The file takes precedence, except for values that operators changed at run time and the edit did
    not: a pool's weights (as a whole, because a single weight has no meaning), its limits and its
    slow start (each as a whole), and whether an endpoint drains.

    Args:
        last_file: The file as it was last applied; ``None`` if it never was.
        new_file: The file as it is now.
        live: The fleet in force.
    """
    if last_file is None:
        return new_file
    before = {pool.name: pool for pool in last_file.pools}
    now = {pool.name: pool for pool in live.pools}

    def merged(pool: PoolSpec) -> PoolSpec:
        old, current = before.get(pool.name), now.get(pool.name)
        if old is None or current is None or pool is old is current:
            return pool
        result = with_live(pool, old, current)
        return current if result is not pool and result == current else result

    def with_live(pool: PoolSpec, old: PoolSpec, current: PoolSpec) -> PoolSpec:
        if _weights(pool) == _weights(old) and _weights(current).keys() == _weights(pool).keys():
            pool = _with_weights(pool, _weights(current))
        sections: dict[str, Any] = {
            section: getattr(current, section)
            for section in SECTIONS
            if getattr(pool, section) == getattr(old, section)
        }
        if any(getattr(pool, section) != value for section, value in sections.items()):
            pool = pool.model_copy(update=sections)
        written, edited = _draining(old), _draining(pool)
        kept = {
            endpoint: state
            for endpoint, state in _draining(current).items()
            if endpoint in edited and written.get(endpoint) == edited[endpoint]
        }
        return _with_draining(pool, kept)

    return _with_pools(new_file, merged)


def _find_pool(fleet: Fleet, name: str) -> PoolSpec:
    for pool in fleet.pools:
        if pool.name == name:
            return pool
    raise UnknownName("pool", name, (pool.name for pool in fleet.pools))


def _with_pools(fleet: Fleet, change: Callable[[PoolSpec], PoolSpec]) -> Fleet:
    return fleet.model_copy(update={"pools": tuple(change(pool) for pool in fleet.pools)})


def _weights(pool: PoolSpec) -> dict[str, int]:
    return {variant.name: variant.weight for variant in pool.variants}


def _draining(pool: PoolSpec) -> dict[str, bool]:
    return {endpoint.id: endpoint.draining for endpoint in pool.endpoints}


def _with_weights(pool: PoolSpec, weights: Mapping[str, int]) -> PoolSpec:
    if all(weights.get(each.name, each.weight) == each.weight for each in pool.variants):
        return pool
    variants = tuple(
        variant.model_copy(update={"weight": weights.get(variant.name, variant.weight)})
        for variant in pool.variants
    )
    return pool.model_copy(update={"variants": variants})


def _with_draining(pool: PoolSpec, states: Mapping[str, bool]) -> PoolSpec:
    def changed(endpoint: EndpointSpec) -> EndpointSpec:
        state = states.get(endpoint.id, endpoint.draining)
        if state == endpoint.draining:
            return endpoint
        return endpoint.model_copy(update={"draining": state})

    if all(states.get(each.id, each.draining) == each.draining for each in pool.endpoints):
        return pool
    return pool.model_copy(update={"endpoints": tuple(map(changed, pool.endpoints))})
