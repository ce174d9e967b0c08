"""Loading of fleet files: text to a valid ``Fleet``, or all faults with line and correction."""

from __future__ import annotations

import difflib
import typing
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ValidationError

from xds_server.fleet import document
from xds_server.fleet.model.fields import PATTERN_MEANINGS
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.model.kubernetes import KUBERNETES_MEANINGS
from xds_server.fleet.rules import fleet as rules
from xds_server.fleet.rules.problem import spell
from xds_server.fleet.rules.sound import sound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_core import ErrorDetails

    from xds_server.fleet.rules.problem import Location

MAX_FAULTS = 20
"""Most faults that are listed for one file; further ones are counted."""

_SHOWN_CHARS = 60
_MEANINGS = {**PATTERN_MEANINGS, **KUBERNETES_MEANINGS}


class Fault(NamedTuple):
    """One fault of a fleet."""

    source: str
    line: int | None
    path: str
    reason: str

    def __str__(self) -> str:
        """Return ``fleet.yaml:12: pools[0].name: reason``."""
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{where}: {self.path}: {self.reason}" if self.path else f"{where}: {self.reason}"


class FleetError(ValueError):
    """An invalid fleet; the message has one line per fault.

    Attributes:
        faults: At most ``MAX_FAULTS`` faults.
        omitted: Number of further faults.
    """

    def __init__(self, faults: Sequence[Fault], omitted: int = 0) -> None:
        self.faults = tuple(faults[:MAX_FAULTS])
        self.omitted = omitted + len(faults) - len(self.faults)
        lines = [str(fault) for fault in self.faults]
        if self.omitted:
            lines.append(f"... and {self.omitted} more")
        super().__init__("\n".join(lines))


def load_text(text: str, source: str = "fleet") -> Fleet:
    """Load a fleet file.

    Args:
        text: YAML or JSON.
        source: Name of the text in error messages.

    Raises:
        FleetError: The text is not a valid fleet; the error lists all faults.
    """
    try:
        root = document.read(text)
    except document.DocumentError as error:
        raise FleetError([Fault(source, error.line, "", error.reason)]) from None
    try:
        fleet = Fleet.model_validate(root.plain())
    except ValidationError as error:
        found = _field_faults(error.errors(include_url=False), root)
        # Reasons take time (they look for similar names), so only those that are shown are made.
        raise FleetError(
            [
                Fault(source, root.closest(at).line, spell(at) if at else "", _reason(detail, at))
                for at, detail in found[:MAX_FAULTS]
            ],
            len(found[MAX_FAULTS:]),
        ) from None
    check(fleet, source, root)
    return fleet


def check(fleet: Fleet, source: str = "fleet", root: document.YamlNode | None = None) -> None:
    """Check a fleet against the rules.

    Args:
        fleet: The fleet to check.
        source: Its name in error messages.
        root: The document from which it was read, for line numbers.

    Raises:
        FleetError: The fleet breaks rules; the error lists all of them.
    """
    if sound(fleet):
        return
    problems = rules.problems(fleet)
    if problems:
        raise FleetError(
            [
                Fault(source, root.closest(p.location).line if root else None, p.path, p.message)
                for p in problems[:MAX_FAULTS]
            ],
            len(problems[MAX_FAULTS:]),
        )


def _field_faults(
    details: Sequence[ErrorDetails], root: document.YamlNode
) -> list[tuple[Location, ErrorDetails]]:
    endpoints: dict[Location, set[Location]] = {}
    """Places with faults, by the endpoint (or what else is four levels deep) that holds them."""
    for detail in details:
        endpoints.setdefault(detail["loc"][:4], set()).add(detail["loc"])
    faults = []
    for detail in details:
        at = detail["loc"]
        if at and at[-1] == "[key]":
            at = at[:-1]
        follows = at[-1:] == ("id",) and not root.holds(at)
        if follows and endpoints.get(at[:4], set()) - {at}:
            continue  # an omitted id is the address, whose own fault is reported
        if detail["type"] == "too_short" and detail["input"]:
            continue  # its entries are faulty, and each fault is reported
        faults.append((at, detail))
    return faults


_OWN_MESSAGES = frozenset(
    {"duration", "host_port", "reserved_header", "no_address", "two_hosts"}
    | {"one_source", "dns_port", "dns_interval"}
)
"""Error types whose message comes from the model itself."""

_SHAPES = {
    "model_type": "{value} stands where a mapping belongs; write `key: value` lines",
    "dict_type": "{value} stands where a mapping belongs; write `key: value` lines",
    "tuple_type": "{value} stands where a list belongs; write `- ...` lines or [...]",
    "too_short": "empty; write at least one entry",
    "literal_error": "{value} is none of {expected}",
    "too_long": "more than {most} entries; remove some",
    "missing": "missing; write `{field}:` here",
}


def _reason(detail: ErrorDetails, at: Location) -> str:
    kind, context, value = detail["type"], detail.get("ctx", {}), _shown(detail["input"])
    if kind in _OWN_MESSAGES:
        return detail["msg"]
    if kind in _SHAPES:
        return _SHAPES[kind].format(
            value=value,
            field=at[-1] if at else "",
            expected=context.get("expected"),
            most=context.get("max_length"),
        )
    if kind == "extra_forbidden":
        return _unknown_field(at)
    if kind == "string_pattern_mismatch":
        return f"{value} does not fit; write {_MEANINGS[context['pattern']]}"
    if kind == "string_type" and isinstance(detail["input"], bool | int | float):
        return f'{value} without quotes is not text; write "{value}" in quotes'
    message = detail["msg"]
    return f"{value}: {message[:1].lower()}{message[1:]}"


def _unknown_field(at: Location) -> str:
    known = list(_model_at(at[:-1]).model_fields)
    close = difflib.get_close_matches(str(at[-1]), known, 1)
    if close:
        return f"unknown field; did you mean '{close[0]}'?"
    return f"unknown field; known are {', '.join(known)}"


def _model_at(location: Location) -> type[BaseModel]:
    model: type[BaseModel] = Fleet
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = next(_models_in(model.model_fields[part].annotation), model)
    return model


def _models_in(annotation: Any) -> typing.Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    text = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
    return f"'{text}'" if isinstance(value, str) else text
