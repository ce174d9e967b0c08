"""Reads fields of the wire's messages into the picker's values, by tables. Pure.

Rules:

1. A value's field takes the message's field of its name, or of its name with a unit (``UNITS``):
   ``index_ttl_s`` takes ``index_ttl_seconds``.
2. 0 on the wire, an empty text and an enum's first value stand for the value's default, except
   where 0 is named as a value.
3. Any other number is finite and within its bounds, which are 0 to infinity where none are given.
   An enum's number is one that this picker knows.
4. Tables are made when a module is imported. There a field of the message is refused that no
   field of the value takes and that is not named as converted elsewhere.
"""

from __future__ import annotations

import sys
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from tidegate_api.pools import enum_numbers

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

UNITS: Final = (("", ""), ("_seconds", "_s"), ("_per_endpoint", ""))
"""How names end in messages, and in values."""


class PoolError(ValueError):
    """The resource makes no sense; the text names the place."""


class Bounds(NamedTuple):
    """What a number that is not 0 may be."""

    least: float = 0.0
    most: float = sys.float_info.max

    def __str__(self) -> str:
        """Return the bounds in words."""
        if self.most == sys.float_info.max:
            return f"finite and at least {self.least:g}"
        return f"{self.least:g} to {self.most:g}"


class FieldRule(NamedTuple):
    """How one field is read."""

    wire: str
    value: str
    place: str
    """What errors call it."""
    unset: Any
    """What 0 stands for; ``None`` = 0 itself."""
    words: Mapping[int, str] | None
    """Of an enum."""
    bounds: Bounds | None
    """Of a number."""


class FieldReader:
    """Reads one kind of message into fields of one kind of value; see the module's rules.

    Args:
        message: The message's class.
        value: The dataclass; its defaults count.
        zero: Fields of the message in which 0 is a value.
        bounds: Bounds by the message's field.
        elsewhere: Fields of the message that the caller converts.
        place: What errors put before a field's name.

    Raises:
        TypeError: The value has no field for one of the message's fields.
    """

    def __init__(
        self,
        message: type[Message],
        value: type,
        *,
        zero: Collection[str] = (),
        bounds: Mapping[str, Bounds] | None = None,
        elsewhere: Collection[str] = (),
        place: str = "",
    ) -> None:
        defaults = {
            field.name: field.default for field in fields(value) if field.default is not MISSING
        }
        rules = []
        for field in cast("Sequence[FieldDescriptor]", message.DESCRIPTOR.fields):
            if field.name in elsewhere:
                continue
            name = _value_name(field.name, defaults)
            if name is None:
                raise TypeError(
                    f"{field.full_name}: {value.__module__}.{value.__name__} has no field for it; "
                    "add one, or name it in `elsewhere` and convert it by hand"
                )
            rules.append(
                FieldRule(
                    wire=field.name,
                    value=name,
                    place=place + field.name.removesuffix("_seconds"),
                    unset=None if field.name in zero else defaults[name],
                    words=_words(field),
                    bounds=(bounds or {}).get(field.name, Bounds()) if _is_number(field) else None,
                )
            )
        self.rules: Final = tuple(rules)

    def read(self, message: Message, where: str) -> dict[str, Any]:
        """Return what the message says, by the value's fields.

        Raises:
            PoolError: A number is out of its bounds, or an enum's number is unknown.
        """
        found = {}
        for wire, name, place, unset, words, bounds in self.rules:
            value = getattr(message, wire)
            if not value:
                if unset is not None:
                    value = unset
            elif words is not None:
                if value not in words:
                    raise PoolError(f"{where}: {place} has the unknown value {value}")
                value = words[value]
            elif bounds is not None and not bounds.least <= value <= bounds.most:
                raise PoolError(f"{where}: {place} is {value}; it must be {bounds}")
            found[name] = value
        return found


def _value_name(wire: str, known: Collection[str]) -> str | None:
    for theirs, ours in UNITS:
        name = wire.removesuffix(theirs) + ours
        if wire.endswith(theirs) and name in known:
            return name
    return None


def _words(field: FieldDescriptor) -> dict[int, str] | None:
    if field.enum_type is None:
        return None
    return {number: word for word, number in enum_numbers(field.enum_type).items()}


def _is_number(field: FieldDescriptor) -> bool:
    return field.cpp_type in {field.CPPTYPE_DOUBLE, field.CPPTYPE_UINT32}
