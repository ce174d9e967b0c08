"""Reuse of equal parts: a new fleet takes over the objects of the fleet before it. Pure.

Everything that follows a change (rules, differences, resources) recognises unchanged pools and
endpoints by their identity. Equality is checked once, here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import BaseModel

    from xds_server.fleet.model.fleet import Fleet, PoolSpec

_Model = TypeVar("_Model", bound="BaseModel")
_Item = TypeVar("_Item")


def shared(old: Fleet | None, new: Fleet) -> Fleet:
    """Return a fleet equal to ``new`` that consists of objects of ``old`` where these are equal."""
    if old is None or old is new:
        return new
    before = {pool.name: pool for pool in old.pools}
    pools = tuple(_pool(before.get(pool.name), pool) for pool in new.pools)
    return _with(
        new,
        pools=_same(old.pools, pools),
        listener=_either(old.listener, new.listener),
        pickers=_either(old.pickers, new.pickers),
    )


def _pool(old: PoolSpec | None, new: PoolSpec) -> PoolSpec:
    if old is None or old is new:
        return new
    endpoints = {endpoint.id: endpoint for endpoint in old.endpoints}
    variants = {variant.name: variant for variant in old.variants}
    pool = _with(
        new,
        endpoints=_same(
            old.endpoints, tuple(_either(endpoints.get(one.id), one) for one in new.endpoints)
        ),
        variants=_same(
            old.variants, tuple(_either(variants.get(one.name), one) for one in new.variants)
        ),
    )
    return _either(old, pool)


def _either(old: _Model | None, new: _Model) -> _Model:
    return old if old is not None and (old is new or old == new) else new


def _same(old: tuple[_Item, ...], new: tuple[_Item, ...]) -> tuple[_Item, ...]:
    """Return ``old`` if ``new`` has the same objects."""
    return old if len(old) == len(new) and _identical(old, new) else new


def _identical(old: Iterable[_Item], new: Iterable[_Item]) -> bool:
    return all(one is two for one, two in zip(old, new, strict=True))


def _with(model: _Model, **fields: object) -> _Model:
    """Return the model with these equal values; itself if all of them are its own objects."""
    if all(getattr(model, name) is value for name, value in fields.items()):
        return model
    return model.model_copy(update=fields)
