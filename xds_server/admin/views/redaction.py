"""A resource as JSON values for people, without what is secret.

Rules:

1. Hidden are: fields that Envoy's API marks as sensitive; inline files (``DataSource``), but for
   the bodies of answers; fields, keys of structs and headers whose names tell of a secret; user and
   password in a URL, and queries with such names.
2. A message whose schema is not known is hidden as a whole.
3. Names of files stay: a private key is never sent, only where Envoy finds it.

Source: ``udpa/annotations/sensitive.proto``, by which Envoy's own ``/config_dump`` hides.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import any_pb2, json_format
from google.protobuf.message import DecodeError
from udpa.annotations import sensitive_pb2

from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import POOL_TYPE
from xds_server.fleet.guards.typed import TypedError, class_of

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

HIDDEN: Final = "(hidden)"
MAX_DEPTH: Final = 48
"""Levels of messages; what is deeper is hidden."""

_SECRET_FIELD: Final = re.compile(
    r"(^|[_-])(password|passphrase|secret|private[_-]?key|api[_-]?key|access[_-]?key|token"
    r"|credentials?)$",
    re.IGNORECASE,
)
_SECRET_NAME: Final = re.compile(
    r"authoriz|cookie|password|passphrase|secret|private[_-]?key|api[_-]?key|access[_-]?key|token"
    r"|credential",
    re.IGNORECASE,
)
_NAMES: Final = ("key", "name", "header_name")
"""Fields that tell what the other fields of a message are the values of."""
_SHOWN_FILES: Final = frozenset({"body", "text_format_source"})
_DATA_SOURCE: Final = "envoy.config.core.v3.DataSource"
_INLINE: Final = frozenset({"inline_string", "inline_bytes"})
_USER: Final = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY: Final = re.compile(r"(?<=[?&])([^=&\s]+)=([^&\s]*)")
_STRUCTS: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))


def readable(packed: bytes) -> Any:
    """Return the message of a serialized ``Any`` as JSON values, without secrets."""
    try:
        return _any(any_pb2.Any.FromString(packed), 0)
    except DecodeError:
        return HIDDEN


def _any(packed: any_pb2.Any, depth: int) -> Any:
    url = packed.type_url
    try:
        kind = pool_pb2.Pool if url == POOL_TYPE else class_of(url.rpartition("/")[2])
        message = kind.FromString(packed.value)
    except (TypedError, DecodeError):
        return {"@type": url, "value": HIDDEN}
    found = _message(message, depth + 1)
    return {"@type": url, **found} if isinstance(found, dict) else {"@type": url, "value": found}


def _message(message: Message, depth: int, field: str = "") -> Any:
    name = message.DESCRIPTOR.full_name
    if depth > MAX_DEPTH:
        return HIDDEN
    if isinstance(message, any_pb2.Any):
        return _any(message, depth)
    if name in _STRUCTS:
        return _struct(json_format.MessageToDict(message))
    if name.startswith("google.protobuf."):
        return json_format.MessageToDict(message)
    secret = _is_value_of_secret(message)
    inline = name == _DATA_SOURCE and field not in _SHOWN_FILES
    found: dict[str, Any] = {}
    for each, value in message.ListFields():
        hidden = (
            each.GetOptions().Extensions[sensitive_pb2.sensitive]
            or (inline and each.name in _INLINE)
            or (secret and each.name not in _NAMES and each.cpp_type != each.CPPTYPE_ENUM)
            or (each.cpp_type == each.CPPTYPE_STRING and _SECRET_FIELD.search(each.name))
        )
        found[each.name] = HIDDEN if hidden else _field(each, value, depth)
    return found


def _field(field: FieldDescriptor, value: Any, depth: int) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        inner = kind.fields_by_name["value"]
        return {
            str(key): HIDDEN if _SECRET_NAME.search(str(key)) else _one(inner, value[key], depth)
            for key in sorted(value)
        }
    if field.is_repeated:
        return [_one(field, each, depth) for each in value]
    return _one(field, value, depth)


def _one(field: FieldDescriptor, value: Any, depth: int) -> Any:
    if field.message_type is not None:
        return _message(value, depth + 1, field.name)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if isinstance(value, bytes):
        return f"({len(value)} bytes)"
    return _text(value) if isinstance(value, str) else value


def _is_value_of_secret(message: Message) -> bool:
    """Return whether a message names a secret beside its value, as a header does."""
    for name in _NAMES:
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is not None and field.cpp_type == field.CPPTYPE_STRING and not field.is_repeated:
            said = getattr(message, name)
            if said and "/" not in said and _SECRET_NAME.search(said):
                return True
    return False


def _struct(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: HIDDEN
            if _SECRET_NAME.search(key) and not isinstance(each, bool | int | float)
            else _struct(each)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_struct(each) for each in value]
    return _text(value) if isinstance(value, str) else value


def _text(value: str) -> str:
    if "://" in value:
        value = _USER.sub("", value)
    if "?" in value:
        value = _QUERY.sub(_parameter, value)
    return value


def _parameter(found: re.Match[str]) -> str:
    name, value = found[1], found[2]
    return f"{name}={HIDDEN if _SECRET_NAME.search(name) else value}"
