"""Reuse of equal parts: a new fleet takes over the objects of the fleet before it. Pure.

Everything that follows a change (rules, differences, resources) recognises unchanged pools and
endpoints by their identity. Equality is checked once, here.
"""

from __future__ import annotations

from itertools import compress, count
from operator import attrgetter, is_, is_not
from typing import TYPE_CHECKING, TypeVar

from xds_server.fleet.parts.successive import changed, with_changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pydantic import BaseModel

    from xds_server.fleet.model.fleet import Fleet, PoolSpec
    from xds_server.fleet.parts.successive import Changes

_Model = TypeVar("_Model", bound="BaseModel")
_Item = TypeVar("_Item")


def shared(old: Fleet | None, new: Fleet) -> Fleet:
    """Return a fleet equal to ``new`` that consists of objects of ``old`` where these are equal."""
    if old is None or old is new:
        return new
    changes = changed(old, new)
    if changes is not None:
        return _patched(old, changes)
    before = {pool.name: pool for pool in old.pools}
    pools = tuple(shared_pool(before.get(pool.name), pool) for pool in new.pools)
    return _with(
        new,
        pools=_same(old.pools, pools),
        listener=_either(old.listener, new.listener),
        pickers=_either(old.pickers, new.pickers),
    )


def _patched(old: Fleet, changes: Changes) -> Fleet:
    pools = {each.position: shared_pool(each.was, each.now) for each in changes}
    return with_changed(old, {at: pool for at, pool in pools.items() if pool is not old.pools[at]})


def shared_pool(old: PoolSpec | None, new: PoolSpec) -> PoolSpec:
    """Return a pool equal to ``new`` that consists of objects of ``old``, as ``shared`` does."""
    if old is None or old is new:
        return new
    pool = _with(
        new,
        endpoints=_shared_items(old.endpoints, new.endpoints, attrgetter("id")),
        variants=_shared_items(old.variants, new.variants, attrgetter("name")),
    )
    return _either(old, pool)


def _shared_items(
    old: tuple[_Model, ...], new: tuple[_Model, ...], name: Callable[[_Model], str]
) -> tuple[_Model, ...]:
    if len(old) == len(new):
        differing = list(compress(count(), map(is_not, old, new)))
        if all(name(old[at]) == name(new[at]) for at in differing):
            items = list(new)
            for at in differing:
                items[at] = _either(old[at], new[at])
            return _same(old, tuple(items))
    before = {name(one): one for one in old}
    return _same(old, tuple(_either(before.get(name(one)), one) for one in new))


def _either(old: _Model | None, new: _Model) -> _Model:
    return old if old is not None and (old is new or old == new) else new


def _same(old: tuple[_Item, ...], new: tuple[_Item, ...]) -> tuple[_Item, ...]:
    """Return ``old`` if ``new`` has the same objects."""
    return old if len(old) == len(new) and _identical(old, new) else new


def _identical(old: Iterable[_Item], new: Iterable[_Item]) -> bool:
    return all(map(is_, old, new))


def _with(model: _Model, **fields: object) -> _Model:
    """Return the model with these equal values; itself if all of them are its own objects."""
    if all(getattr(model, name) is value for name, value in fields.items()):
        return model
    return model.model_copy(update=fields)
