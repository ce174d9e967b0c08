"""What each request makes several of: values that cost little to make, compiled or not.

They are no dataclasses, as mypyc leaves the constructors of these to the interpreter, and not
``frozen``, which makes them three times as expensive. All the same nobody changes one that he did
not make.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self


class Plain:
    """A value: equal to another of its class where all of it is.

    A subclass has ``__slots__``, and its constructor takes each of them under its name.
    """

    __slots__: ClassVar[tuple[str, ...]] = ()

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).__slots__}

    def __eq__(self, other: object) -> bool:
        """Compare field by field."""
        if not isinstance(other, Plain) or type(other) is not type(self):
            return NotImplemented
        return self._fields() == other._fields()

    __hash__ = None  # type: ignore[assignment]  # as in a dataclass: equal ones may differ later

    def __repr__(self) -> str:
        fields = ", ".join([f"{name}={value!r}" for name, value in self._fields().items()])
        return f"{type(self).__name__}({fields})"

    def changed(self, **values: Any) -> Self:
        """Return the same but for these fields.

        Raises:
            TypeError: There is no such field.
        """
        return type(self)(**{**self._fields(), **values})
