"""Differences between two fleets as readable lines, for operators and the revision history."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from xds_server.fleet.channels import drains
from xds_server.fleet.memo import ByIdentity, with_pools

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import BaseModel

    from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec

MAX_LINES = 200
"""Most lines of a difference; the last line then counts the omitted ones."""

DRAINS: Final = "drains the listener's connections: "
"""Start of the line that names the fields for which Envoy drains connections, with commas."""


def diff(old: Fleet | None, new: Fleet) -> tuple[str, ...]:
    """Return the differences in the order of the new fleet; empty if the fleets are equal.

    Args:
        old: The fleet before; ``None`` if there was none.
        new: The fleet after.
    """
    lines = list(_lines(old, new))
    if len(lines) > MAX_LINES:
        lines[MAX_LINES - 1 :] = [f"... and {len(lines) - MAX_LINES + 1} more"]
    return tuple(lines)


def is_relief(before: Fleet | None, after: Fleet) -> bool:
    """Return whether two fleets differ only in drains and in the share of rejected requests.

    These take load from replicas or give it back. They add no replica and no name, so that nothing
    refers to a revision that a restart may lose. Such changes are made even while the store cannot
    be written.
    """
    return before is not None and _without_relief(before) == _without_relief(after)


def _without_relief(fleet: Fleet) -> Fleet:
    return with_pools(fleet, map(_calm, fleet.pools))


@ByIdentity
def _calm(pool: PoolSpec) -> PoolSpec:
    endpoints = tuple(
        each.model_copy(update={"draining": False, "standby": False})
        if each.draining or each.standby
        else each
        for each in pool.endpoints
    )
    return pool.model_copy(update={"endpoints": endpoints, "drained": (), "drop_overload": 0.0})


def _lines(old: Fleet | None, new: Fleet) -> Iterator[str]:
    if old is None:
        for pool in new.pools:
            yield _added_pool(pool)
        return
    edge = [
        *_fields("listener", old.listener, new.listener),
        *_fields("pickers", old.pickers, new.pickers),
    ]
    yield from edge
    yield from _gateway(old, new)
    for name in ("on_reject", "reject_quorum", "waves"):
        yield from _values(name, getattr(old, name), getattr(new, name))
    if edge and (drained := drains(old, new)):
        yield DRAINS + ", ".join(drained)
    before = {pool.name: pool for pool in old.pools}
    for pool in new.pools:
        known = before.pop(pool.name, None)
        if known is not pool:
            yield from [_added_pool(pool)] if known is None else _pool(known, pool)
    for pool in before.values():
        yield f"pool {pool.name} removed"
    yield from _order("pools", [p.name for p in old.pools], [p.name for p in new.pools])


def _gateway(old: Fleet, new: Fleet) -> Iterator[str]:
    if old.gateway is not None and new.gateway is not None:
        yield from _fields("gateway", old.gateway, new.gateway)
    elif old.gateway != new.gateway:
        yield "gateway removed" if new.gateway is None else "gateway added"


def _added_pool(pool: PoolSpec) -> str:
    count = len(pool.endpoints)
    return f"pool {pool.name} added ({count} endpoint{'' if count == 1 else 's'})"


def _pool(old: PoolSpec, new: PoolSpec) -> Iterator[str]:
    where = f"pool {new.name}:"
    yield from _fields(where, old, new, skip=("variants", "endpoints", "endpoints_from"))
    yield from _sources(where, old, new)
    variants = {variant.name: variant for variant in old.variants}
    for variant in new.variants:
        known = variants.pop(variant.name, None)
        if known is None:
            yield f"{where} variant {variant.name} added (weight {variant.weight})"
        else:
            yield from _fields(f"{where} variant {variant.name}", known, variant)
    for name in variants:
        yield f"{where} variant {name} removed"
    yield from _order(
        f"{where} variants", [v.name for v in old.variants], [v.name for v in new.variants]
    )
    if old.endpoints is new.endpoints and old.variants[0].name == new.variants[0].name:
        return
    endpoints = {endpoint.id: endpoint for endpoint in old.endpoints}
    for endpoint in new.endpoints:
        before = endpoints.pop(endpoint.id, None)
        if before is None:
            yield f"{where} endpoint {endpoint.id} added ({_summary(new, endpoint)})"
        elif before is not endpoint or old.variants[0].name != new.variants[0].name:
            yield from _endpoint(where, old, before, new, endpoint)
    for name in endpoints:
        yield f"{where} endpoint {name} removed"
    yield from _order(
        f"{where} endpoints", [e.id for e in old.endpoints], [e.id for e in new.endpoints]
    )


def _sources(where: str, old: PoolSpec, new: PoolSpec) -> Iterator[str]:
    sources = {source.key: source for source in old.endpoints_from}
    for source in new.endpoints_from:
        if source.key in sources:
            yield from _fields(f"{where} source {source.key}", sources.pop(source.key), source)
        else:
            yield f"{where} source {source.key} added"
    for key in sources:
        yield f"{where} source {key} removed"


def _endpoint(
    where: str, old: PoolSpec, was: EndpointSpec, new: PoolSpec, now: EndpointSpec
) -> Iterator[str]:
    before, after = old.variant_of(was), new.variant_of(now)
    if before != after:
        yield f"{where} endpoint {now.id} variant {before} -> {after}"
    yield from _fields(f"{where} endpoint {now.id}", was, now, skip=("variant",))


def _summary(pool: PoolSpec, endpoint: EndpointSpec) -> str:
    return f"{endpoint.grpc or endpoint.http}, {pool.variant_of(endpoint)}"


def _order(what: str, old: list[str], new: list[str]) -> Iterator[str]:
    if old == new:
        return
    both = set(old) & set(new)
    if [name for name in old if name in both] != [name for name in new if name in both]:
        yield f"{what} reordered"


def _fields(
    where: str, old: BaseModel, new: BaseModel, skip: tuple[str, ...] = ()
) -> Iterator[str]:
    if old is new or old == new:
        return
    left = set(skip)
    was, now = old.model_dump(mode="json", exclude=left), new.model_dump(mode="json", exclude=left)
    for name in type(new).model_fields:
        if name not in skip:
            yield from _values(f"{where} {name}", was[name], now[name])


def _values(where: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _mappings(where, old, new)
    elif isinstance(old, list) and isinstance(new, list) and _counted(old) != _counted(new):
        before, after = _counted(old), _counted(new)
        added = [f"+{value}" for value in map(str, new) if value not in before]
        removed = [f"-{value}" for value in map(str, old) if value not in after]
        yield f"{where} {' '.join([*added, *removed])}"
    elif old != new:
        yield f"{where} {_word(old)} -> {_word(new)}"


def _counted(values: list[Any]) -> Counter[str]:
    return Counter(map(str, values))


def _mappings(where: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for key in {**old, **new}:
        yield from _values(f"{where}.{key}", old.get(key), new.get(key))


def _word(value: Any) -> str:
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value)
