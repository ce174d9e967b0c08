"""Messages of Envoy's API in a fleet, as JSON whose `@type` names the message.

Rules:

1. A message is parsed against the schema of its type, so a wrong field or value is found at its
   place before anything is published. Constraints on values are Envoy's own: ``tidegate validate
   --envoy`` asks it.
2. Only schemas of Envoy (``envoy``, ``xds``, ``udpa``) and Google's basic types are known. A name
   in a fleet never imports anything else.

The schemas are those of ``xds-protos``: a field or a type that only a newer Envoy has is unknown.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import pkgutil
import re
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import any_pb2, json_format, symbol_database

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from google.protobuf.message import Message

    from xds_server.fleet.rules.problem import Location

URL: Final = "type.googleapis.com/"
TYPE_KEY: Final = "@type"

_NAME: Final = re.compile(
    r"(envoy|xds|udpa)(\.[a-z][a-z0-9_]{0,63}){1,12}(\.[A-Z][A-Za-z0-9]{0,127}){1,4}"
)
_BASIC: Final = {
    f"google.protobuf.{name}": module
    for module, names in {
        "any_pb2": ("Any",),
        "duration_pb2": ("Duration",),
        "empty_pb2": ("Empty",),
        "struct_pb2": ("Struct", "Value", "ListValue"),
        "timestamp_pb2": ("Timestamp",),
        "wrappers_pb2": (
            *("BoolValue", "StringValue", "BytesValue", "DoubleValue", "FloatValue"),
            *("Int32Value", "Int64Value", "UInt32Value", "UInt64Value"),
        ),
    }.items()
    for name in names
}
_UNKNOWN_FIELD: Final = re.compile(
    r'Message type "([^"]*)" has no field named "([^"]*)" at "([^"]*)"', re.DOTALL
)
_PLACE: Final = re.compile(r' at "?([A-Za-z_][^"\s]*?)"?\.*$')
_STEP: Final = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")
_MAX_REASON: Final = 300
_SUGGESTED: Final = 3
_KNOWN_TYPES: Final = 4096
"""Types whose schema is remembered."""


class TypedError(ValueError):
    """The value is no message of Envoy's API.

    Attributes:
        location: Where in the value.
        reason: What is wrong and how to correct it.
    """

    def __init__(self, location: Location, reason: str) -> None:
        super().__init__(reason)
        self.location = location
        self.reason = reason


def type_of(value: Mapping[str, Any]) -> str:
    """Return the full name of a message's type, e.g. ``envoy.config.cluster.v3.Cluster``.

    Raises:
        TypedError: `@type` is missing or no text.
    """
    found = value.get(TYPE_KEY)
    if not isinstance(found, str) or not found:
        raise TypedError(
            (), f"write `{TYPE_KEY}: {URL}envoy.…`, the type of the message, as its first field"
        )
    return found.removeprefix(URL)


def parsed(value: Mapping[str, Any]) -> Message:
    """Return the message.

    Raises:
        TypedError: The type is unknown, or the value does not fit it.
    """
    for location, inner in _typed_parts(value, ()):
        try:
            class_of(type_of(inner))
        except TypedError as error:
            raise TypedError((*location, TYPE_KEY), error.reason) from None
    message: Message = class_of(type_of(value))()
    plain = {key: each for key, each in value.items() if key != TYPE_KEY}
    try:
        json_format.ParseDict(plain, message, max_recursion_depth=64)
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
        raise _explained(str(error)) from None
    return message


def packed(value: Mapping[str, Any]) -> any_pb2.Any:
    """Return the message as an ``Any``; raises as ``parsed``."""
    made = any_pb2.Any()
    made.Pack(parsed(value), deterministic=True)
    return made


def _typed_parts(value: Any, at: Location) -> Iterator[tuple[Location, Mapping[str, Any]]]:
    if isinstance(value, dict):
        if not at or TYPE_KEY in value:
            yield at, value
        for key, each in value.items():
            yield from _typed_parts(each, (*at, key))
    elif isinstance(value, list | tuple):
        for position, each in enumerate(value):
            yield from _typed_parts(each, (*at, position))


@functools.lru_cache(maxsize=_KNOWN_TYPES)
def class_of(name: str) -> Any:
    """Return the class of a message by its full name.

    Raises:
        TypedError: There is none; with a hint.
    """
    if name in _BASIC:
        importlib.import_module(f"google.protobuf.{_BASIC[name]}")
    elif _NAME.fullmatch(name):
        package = ".".join(part for part in name.split(".") if part[0].islower())
        _load(package, name)
    else:
        raise TypedError(
            (),
            f"'{name[:128]}' names no message of Envoy; write for example "
            f"{URL}envoy.extensions.filters.http.rbac.v3.RBAC",
        )
    try:
        return symbol_database.Default().GetSymbol(name)
    except KeyError:
        raise TypedError((), f"Envoy's API has no type '{name}'{_hint_of_message(name)}") from None


def _load(package: str, name: str) -> None:
    """Import the schemas of a package."""
    known = ""
    for part in package.split("."):
        inside = f"{known}.{part}" if known else part
        if not _is_package(inside):
            others = [each.name for each in pkgutil.iter_modules(_path(known)) if each.ispkg]
            raise TypedError((), f"Envoy's API has no type '{name}'{_hint(part, others)}")
        known = inside
    for each in pkgutil.iter_modules(_path(package)):
        if each.name.endswith("_pb2"):
            importlib.import_module(f"{package}.{each.name}")


def _is_package(name: str) -> bool:
    found = importlib.util.find_spec(name)
    return found is not None and found.submodule_search_locations is not None


def _path(package: str) -> Any:
    found = importlib.util.find_spec(package) if package else None
    return [] if found is None else found.submodule_search_locations


def _hint_of_message(name: str) -> str:
    package, _, last = name.rpartition(".")
    others: list[str] = []
    for each in pkgutil.iter_modules(_path(package)):
        if each.name.endswith("_pb2"):
            module = importlib.import_module(f"{package}.{each.name}")
            others += module.DESCRIPTOR.message_types_by_name
    return _hint(last, others)


def _hint(wrong: str, known: list[str]) -> str:
    close = difflib.get_close_matches(wrong, known, _SUGGESTED, 0.5) or sorted(known)[:_SUGGESTED]
    return f": there is no '{wrong}', but {', '.join(close)}" if close else ""


def _explained(text: str) -> TypedError:
    unknown = _UNKNOWN_FIELD.search(text)
    if unknown is not None:
        message, field, place = unknown.groups()
        listed = re.findall(r"'(\w+)'", text[unknown.end() :])
        known = [re.sub("([A-Z])", lambda upper: f"_{upper[0].lower()}", each) for each in listed]
        return TypedError(
            (*_steps(place), field), f"{message} has no such field{_hint(field, known)}"
        )
    found = _PLACE.search(text)
    location = _steps(found[1]) if found else ()
    reason = text[: found.start()] if found else text
    # "Failed to parse a field: Failed to parse b field: ...": the place says the same.
    reason = re.sub(r"(Failed to parse \w+ field: )+", "", reason)
    return TypedError(location, reason.strip().rstrip(".")[:_MAX_REASON])


def _steps(place: str) -> Location:
    """Return ``RBAC.rules.policies[a].permissions[0]`` as a location, without its first name."""
    steps: list[str | int] = []
    for index, name in _STEP.findall(place)[1:]:
        steps.append(int(index) if index.isdigit() else index or name)
    return tuple(steps)
