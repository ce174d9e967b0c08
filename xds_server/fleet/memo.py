"""The memo of derived values: what follows from equal parts of fleets is made once.

A change touches few pools and few of their endpoints. Equal parts of a fleet and of the one before
are therefore made one object (``shared``): identity then stands for content, and whatever is
derived from a part is found again without comparing or hashing its endpoints (``ByIdentity``).

Rules of derived values:

1. The subject must be immutable, and the function must depend on nothing but its arguments; those
   after the subject are compared by value.
2. A value lives as long as its subject, or until ``FORMS`` newer ones of the subject: the cache
   never keeps a subject alive, so the number of values is bounded by the number of live subjects.
   A value that is the subject itself is not kept, and none may refer to it.
3. Any thread may call; two threads at once may both compute the value, which is the same.
"""

from __future__ import annotations

import functools
import weakref
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Concatenate, Final, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from pydantic import BaseModel

    from xds_server.fleet.model.fleet import Fleet, PoolSpec

_Subject = TypeVar("_Subject")
_More = ParamSpec("_More")
_Value = TypeVar("_Value")
_Model = TypeVar("_Model", bound="BaseModel")


FORMS: Final = 8
"""Most values of one subject, by the other arguments, that are kept."""


class ByIdentity(Generic[_Subject, _More, _Value]):
    """A function of one immutable object that remembers its results; see the module's rules.

    Usable as a decorator.

    Args:
        function: Computes the value from the object and hashable further arguments.
    """

    def __init__(self, function: Callable[Concatenate[_Subject, _More], _Value]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._known: dict[int, tuple[weakref.ref[_Subject], dict[Hashable, tuple[_Value]]]] = {}

    def __call__(self, subject: _Subject, *more: _More.args, **named: _More.kwargs) -> _Value:
        """Return the value of ``subject``."""
        known, key = self._known, id(subject)
        beside = (*more, *named.items()) if named else more
        found = known.get(key)
        if found is None or found[0]() is not subject:
            found = None
        elif (held := found[1].get(beside)) is not None:
            return held[0]
        value = self._function(subject, *more, **named)
        if value is not subject:
            if found is None:
                found = known[key] = weakref.ref(subject, lambda _: known.pop(key, None)), {}
            elif len(found[1]) >= FORMS:
                found[1].clear()
            found[1][beside] = (value,)
        return value

    def __len__(self) -> int:
        """Return the number of subjects with remembered values."""
        return len(self._known)


def shared(old: Fleet | None, new: Fleet) -> Fleet:
    """Return a fleet equal to ``new`` that consists of objects of ``old`` where these are equal."""
    if old is None or old is new:
        return new
    before = {pool.name: pool for pool in old.pools}
    pools = tuple(shared_pool(before.get(pool.name), pool) for pool in new.pools)
    return _with(
        new,
        pools=_same(old.pools, pools),
        listener=_either(old.listener, new.listener),
        pickers=_either(old.pickers, new.pickers),
    )


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


def with_pools(fleet: Fleet, pools: Iterable[PoolSpec]) -> Fleet:
    """Return the fleet with other pools; itself if all of them are its own objects."""
    return _with(fleet, pools=_same(fleet.pools, tuple(pools)))


def _shared_items(
    old: tuple[_Model, ...], new: tuple[_Model, ...], name: Callable[[_Model], str]
) -> tuple[_Model, ...]:
    if _same(old, new) is old:
        return old
    before = {name(one): one for one in old}
    return _same(old, tuple(_either(before.get(name(one)), one) for one in new))


def _either(old: _Model | None, new: _Model) -> _Model:
    return old if old is not None and (old is new or old == new) else new


def _same(old: tuple[_Model, ...], new: tuple[_Model, ...]) -> tuple[_Model, ...]:
    """Return ``old`` if ``new`` has the same objects."""
    return old if len(old) == len(new) and all(map(is_, old, new)) else new


def _with(model: _Model, **fields: object) -> _Model:
    """Return the model with these equal values; itself if all of them are its own objects."""
    if all(getattr(model, name) is value for name, value in fields.items()):
        return model
    return model.model_copy(update=fields)
