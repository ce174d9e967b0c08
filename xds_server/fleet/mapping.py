"""Copies fields of the fleet's models into the wire's messages, by tables. Pure.

Rules:

1. A message's field takes the model's field of its name, or of its name with another unit
   (``UNITS``): ``index_ttl_seconds`` takes ``index_ttl``, ``explore`` takes ``explore_percent``.
2. A word becomes the enum's value of its name: ``peek`` is ``BODY_MODE_PEEK``. A nested model
   becomes its message by the same rules. ``None`` is left out.
3. Tables are made when a module is imported. There a field of the message is refused that no
   field of the model fills and that is not named as computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from pydantic import BaseModel

from tidegate_api.pools import enum_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from google.protobuf.descriptor import FieldDescriptor

M = TypeVar("M", bound=Message)


class Unit(NamedTuple):
    """How names end in a message and in a model, and what a value is converted by."""

    wire: str
    model: str
    convert: Callable[[Any], Any] | None = None


UNITS: Final = (
    Unit("", ""),
    Unit("_seconds", ""),
    Unit("_seconds", "_ms", lambda value: value / 1000),
    Unit("", "_percent", lambda value: value / 100),
    Unit("_bytes", ""),
    Unit("_bytes", "_mib", lambda value: value * 2**20),
    Unit("_per_endpoint", ""),
)


class CopiedField(NamedTuple):
    """One field, from model to message."""

    wire: str
    model: str
    convert: Callable[[Any], Any] | None


class MessageCopier(Generic[M]):
    """Makes messages of one kind out of models of one kind; see the module's rules.

    Args:
        message: The message's class.
        model: The model's class.
        computed: Fields of the message that the caller gives to each call.

    Raises:
        TypeError: The model has no field for one of the message's fields.
    """

    def __init__(
        self, message: type[M], model: type[BaseModel], computed: Collection[str] = ()
    ) -> None:
        self._message = message
        self.fields: Final = tuple(
            _copied(field, model)
            for field in cast("Sequence[FieldDescriptor]", message.DESCRIPTOR.fields)
            if field.name not in computed
        )

    def __call__(self, model: BaseModel, /, **computed: Any) -> M:
        """Return the message of ``model``; ``computed`` fills the fields that are not copied."""
        for wire, name, convert in self.fields:
            value = getattr(model, name)
            if value is not None:
                computed[wire] = value if convert is None else convert(value)
        return self._message(**computed)


def _copied(field: FieldDescriptor, model: type[BaseModel]) -> CopiedField:
    known = model.model_fields
    for unit in UNITS:
        name = field.name.removesuffix(unit.wire) + unit.model
        if field.name.endswith(unit.wire) and name in known:
            break
    else:
        raise TypeError(
            f"{field.full_name}: {model.__module__}.{model.__name__} has no field for it; add "
            "one, or name it in `computed` and give it to each call"
        )
    kind = known[name].annotation
    if field.enum_type is not None:
        return CopiedField(field.name, name, enum_numbers(field.enum_type).__getitem__)
    if field.message_type is not None and isinstance(kind, type) and issubclass(kind, BaseModel):
        return CopiedField(
            field.name, name, MessageCopier(GetMessageClass(field.message_type), kind)
        )
    return CopiedField(field.name, name, unit.convert)
