"""Loading of fleet files: text to a valid ``Fleet``, or all faults with line and correction.

Of successive texts of one fleet (``FleetLoader``) only edited pools and endpoints are parsed:

1. A text is cut into the texts of its pools, and an edited pool into those of its endpoints, at
   lines that begin with ``- `` at one indentation. What each of them says is known by its content.
2. The cut is a guess, and proved: the rest of the text, with ``_PLACEHOLDER`` as the only item,
   must have it as the list's only value and on its line, and each item must parse by itself.
3. Whatever is unusual (a fault, an anchor, another form of the file) is left to ``load_text``, so
   the result is the one of ``load_text``, which also words the faults.
4. What is remembered is bounded by the last text.
"""

from __future__ import annotations

import difflib
import typing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import BaseModel, ValidationError

from xds_server.fleet import document
from xds_server.fleet.memo import shared, shared_pool
from xds_server.fleet.model.fields import PATTERN_MEANINGS
from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec
from xds_server.fleet.model.kubernetes import KUBERNETES_MEANINGS
from xds_server.fleet.rules import fleet as rules
from xds_server.fleet.rules.problem import spell

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from pydantic_core import ErrorDetails

    from xds_server.fleet.document import YamlNode
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


def check(
    fleet: Fleet,
    source: str = "fleet",
    root: document.YamlNode | None = None,
    before: Fleet | None = None,
) -> None:
    """Check a fleet against the rules.

    Args:
        fleet: The fleet to check.
        source: Its name in error messages.
        root: The document from which it was read, for line numbers.
        before: A fleet that was checked before, of which it may be an edit.

    Raises:
        FleetError: The fleet breaks rules; the error lists all of them.
    """
    problems = rules.problems(fleet, before)
    if problems:
        raise FleetError(
            [
                Fault(source, root.closest(p.location).line if root else None, p.path, p.message)
                for p in problems[:MAX_FAULTS]
            ],
            len(problems[MAX_FAULTS:]),
        )


_PLACEHOLDER: Final = "tidegate-placeholder"
_POOLS: Final = "pools:\n"
_ENDPOINTS: Final = "endpoints:\n"
_UNUSUAL: Final = "\r\t\x85\u2028\u2029\ufeff"
"""Characters that end a line for YAML but not here, or count as indentation elsewhere."""
_AROUND_POOL: Final = 3
"""Values around a pool in a document of its own: the mapping, its key and the list."""
_AROUND_ENDPOINT: Final = 6


class _WholeNeeded(Exception):  # noqa: N818 - reads as the sentence it is
    """The text cannot be loaded in parts."""


class _Cut(NamedTuple):
    """A text whose block list was cut out."""

    rest: str
    """The text with ``_PLACEHOLDER`` as the only item of the list."""
    line: int
    """The placeholder's line, from 1."""
    items: tuple[str, ...]
    """The texts of the items, each with its line break."""

    def proved(self, found: YamlNode | None) -> bool:
        """Return whether the list of the parsed rest proves that the cut was right."""
        if found is None or not isinstance(found.value, list) or len(found.value) != 1:
            return False
        (item,) = found.value
        return item.value == _PLACEHOLDER and item.line == self.line


@dataclass(frozen=True, slots=True)
class _KnownPool:
    spec: PoolSpec
    values: int
    """Number of values in its text."""
    endpoints: Mapping[str, tuple[EndpointSpec, int]] = field(default_factory=dict)
    """By text, with the number of its values."""


class FleetLoader:
    """Loads texts of one fleet, one after the other; see the module's rules.

    What one text and the next have in common is the same objects in both fleets. Any thread may
    call, one at a time.
    """

    def __init__(self) -> None:
        self._last: Fleet | None = None
        self._pools: dict[str, _KnownPool] = {}
        """By text."""

    def load(self, text: str, source: str = "fleet") -> Fleet:
        """Load a fleet file, as ``load_text`` does.

        Args:
            text: YAML or JSON.
            source: Name of the text in error messages.

        Raises:
            FleetError: The text is not a valid fleet; the error lists all faults.
        """
        try:
            fleet = self._in_parts(text)
        except (_WholeNeeded, document.DocumentError, ValidationError):
            fleet = shared(self._last, load_text(text, source))
        self._last = fleet
        return fleet

    def _in_parts(self, text: str) -> Fleet:
        whole = len(text) <= document.MAX_BYTES and not any(each in text for each in _UNUSUAL)
        cut = _cut(text, "\n" + _POOLS, self._pools) if whole else None
        if cut is None or len(text.encode(errors="replace")) > document.MAX_BYTES:
            raise _WholeNeeded
        root, values = _read(cut.rest)
        if not cut.proved(root.child("pools")):
            raise _WholeNeeded
        here = frozenset(cut.items)
        gone = [known for item, known in self._pools.items() if item not in here]
        pools = {item: self._pools.get(item) or _pool(item, gone) for item in cut.items}
        if values - 1 + sum(pools[item].values for item in cut.items) > document.MAX_VALUES:
            raise _WholeNeeded
        plain = root.plain()
        plain["pools"] = [pools[item].spec for item in cut.items]
        fleet = shared(self._last, Fleet.model_validate(plain))
        if rules.problems(fleet):
            raise _WholeNeeded
        self._pools = pools
        return fleet


def _pool(text: str, gone: Sequence[_KnownPool]) -> _KnownPool:
    """Return what the text of a pool says, of which those that are gone may be earlier forms."""
    known = {item: found for each in gone for item, found in each.endpoints.items()}
    depth = len(text) - len(text.lstrip(" ")) + 2
    cut = _cut(_POOLS + text, f"\n{' ' * depth}{_ENDPOINTS}", known)
    root, values = _read(_POOLS + text if cut is None else cut.rest)
    pool = _only(root, ("pools", 0))
    values -= _AROUND_POOL
    plain, endpoints = pool.plain(), dict[str, tuple[EndpointSpec, int]]()
    if cut is not None:
        if not cut.proved(pool.child("endpoints")):
            raise _WholeNeeded
        endpoints = {item: known.get(item) or _endpoint(item) for item in cut.items}
        values += sum(endpoints[item][1] for item in cut.items) - 1
        plain["endpoints"] = [endpoints[item][0] for item in cut.items]
    spec = PoolSpec.model_validate(plain)
    before = next((each.spec for each in gone if each.spec.name == spec.name), None)
    return _KnownPool(shared_pool(before, spec), values, endpoints)


def _endpoint(text: str) -> tuple[EndpointSpec, int]:
    root, values = _read(f"{_POOLS}- {_ENDPOINTS}{text}")
    plain = _only(root, ("pools", 0, "endpoints", 0)).plain()
    return EndpointSpec.model_validate(plain), values - _AROUND_ENDPOINT


def _read(text: str) -> tuple[YamlNode, int]:
    """Return a document and the number of its values."""
    found = document.parse(text)
    if found.anchored:  # anchors connect parts
        raise _WholeNeeded
    return found.root, found.values


def _only(node: YamlNode, path: Sequence[str | int]) -> YamlNode:
    """Return the node at ``path`` if no other value is beside it, at any level."""
    for part in path:
        child = node.child(part)
        if child is None or not isinstance(node.value, list | dict) or len(node.value) != 1:
            raise _WholeNeeded
        node = child
    return node


def _cut(text: str, key: str, known: Container[str]) -> _Cut | None:
    """Return the text without a block list; ``None`` if it has no such list, or several.

    Args:
        text: The text.
        key: The line before the list, between line breaks.
        known: Items of earlier cuts, whose lines are not looked at again.
    """
    head, found, body = f"\n{text}".partition(key)
    if not found or key in f"\n{body}":
        return None
    while body and body.partition("\n")[0].strip()[:1] in ("", "#"):
        line, _, body = body.partition("\n")
        found += f"{line}\n"
    indent = body[: len(body) - len(body.lstrip(" "))]
    first, *parts = f"\n{body}".split(f"\n{indent}- ")
    if first or not parts:
        return None
    items, tail = [], ""
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        item = f"{indent}- {part}" if last else f"{indent}- {part}\n"
        end = len(item) if item in known else _end(item, indent)
        items.append(item[:end])
        if end < len(item):
            tail = item[end:] + "".join(f"{indent}- {each}\n" for each in parts[number + 1 :])
            tail = tail if last else tail[:-1]
            break
    head = (head + found)[1:]
    rest = f"{head}{indent}- {_PLACEHOLDER}\n{tail}"
    return _Cut(rest, head.count("\n") + 1, tuple(items))


def _end(item: str, indent: str) -> int:
    """Return where a line follows that is no part of the item: at its indentation or before it."""
    inner, at = f"{indent} ", item.find("\n") + 1
    while 0 < at < len(item):
        after = item.find("\n", at) + 1 or len(item)
        if not item.startswith(inner, at) and item[at:after].strip()[:1] not in ("", "#"):
            return at
        at = after
    return len(item)


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

_BOUNDS = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal"})


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
    duration = isinstance(detail["input"], str) and detail["input"][-1:].isalpha()
    unit = " seconds" if duration and kind in _BOUNDS else ""
    misfit = isinstance(detail["input"], dict) and not message.startswith("Input ")
    said = "" if misfit else f"{value}: "  # fields of a mapping that do not fit each other
    return f"{said}{message[:1].lower()}{message[1:]}{unit}"


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
