"""Base class of values that each request creates several of, cheap to create, compiled or not.

They are not dataclasses, because mypyc leaves the constructors of those to the interpreter, and
not frozen, because that makes construction three times as expensive. By convention only the code
that created a value changes it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self


class Plain:
    """A value that is equal to another of the same class if all fields are equal.

    A subclass defines ``__slots__``, and its constructor takes each slot as an argument of the
    same name.
    """

    __slots__: ClassVar[tuple[str, ...]] = ()

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).__slots__}

    def __eq__(self, other: object) -> bool:
        """Compare field by field."""
        if not isinstance(other, Plain) or type(other) is not type(self):
            return NotImplemented
        return self._fields() == other._fields()

    __hash__ = None  # type: ignore[assignment]  # as in a dataclass: values may be changed

    def __repr__(self) -> str:
        fields = ", ".join([f"{name}={value!r}" for name, value in self._fields().items()])
        return f"{type(self).__name__}({fields})"

    def changed(self, **values: Any) -> Self:
        """Return a copy with the given fields replaced.

        Raises:
            TypeError: A field does not exist.
        """
        return type(self)(**{**self._fields(), **values})
