"""Messages of the admin API from values whose fields have the same names. Pure."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import Message

_Message = TypeVar("_Message", bound=Message)
_SECONDS = "_seconds"


def copied(kind: type[_Message], value: object, **given: Any) -> _Message:
    """Return a message that has the value's attributes of its fields' names.

    A field ``X_seconds`` has the attribute ``X_s``, and ``None`` leaves a field unset.

    Args:
        kind: The message's class.
        value: What is copied.
        given: The fields that are not copied.

    Raises:
        AttributeError: The value lacks a field, whatever its other fields are.
    """
    for field in kind.DESCRIPTOR.fields:
        name = field.name
        if name not in given:
            own = f"{name.removesuffix(_SECONDS)}_s" if name.endswith(_SECONDS) else name
            given[name] = getattr(value, own)
    return kind(**given)
