"""Values derived from immutable objects, found again by the object's identity.

Comparing or hashing a pool by value takes time in proportion to its endpoints. Unchanged pools keep
their identity from one fleet to the next (``sharing``), so identity is enough to find what was
derived from them.

Rules:

1. The subject must be immutable, and the function must depend on nothing else.
2. A value lives as long as its subject: the cache never keeps a subject alive, so the number of
   values is bounded by the number of live subjects. A value must not refer to its subject.
3. Any thread may call; two threads at once may both compute the value, which is the same.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Subject = TypeVar("_Subject")
_Value = TypeVar("_Value")


class ByIdentity(Generic[_Subject, _Value]):
    """A function of one immutable object that remembers its results; see the module's rules.

    Usable as a decorator.

    Args:
        function: Computes the value.
    """

    def __init__(self, function: Callable[[_Subject], _Value]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._known: dict[int, tuple[weakref.ref[_Subject], _Value]] = {}

    def __call__(self, subject: _Subject) -> _Value:
        """Return the value of ``subject``."""
        key = id(subject)
        found = self._known.get(key)
        if found is not None and found[0]() is subject:
            return found[1]
        value = self._function(subject)
        known = self._known
        self._known[key] = (weakref.ref(subject, lambda _: known.pop(key, None)), value)
        return value

    def __len__(self) -> int:
        """Return the number of remembered values."""
        return len(self._known)
