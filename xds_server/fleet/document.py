"""Parser of YAML (and therefore JSON) into plain values with their line numbers.

Rules:

1. Only plain data is accepted: mappings with text keys, lists, text, numbers, booleans and null.
   Tags are rejected, so no document can name a Python object.
2. Scalars follow the YAML 1.2 core schema: ``on``, ``no`` and ``12:30`` are text.
3. A key may appear only once in a mapping; ``<<`` merges as usual.
4. Size, depth and the number of values after expanding aliases are bounded. A document above a
   bound is rejected, never truncated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_BYTES = 4 * 2**20
MAX_DEPTH = 32
MAX_VALUES = 400_000
"""Most values in a document; an alias counts each time it is used."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where the wheel has it

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_INT = re.compile(r"[-+]?[0-9]{1,400}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = {".inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}

Scalar = str | int | float | bool | None


class DocumentError(ValueError):
    """The text is not a valid document.

    Attributes:
        line: Line of the fault, from 1; ``None`` if it concerns the whole text.
        reason: What is wrong and how to correct it.
    """

    def __init__(self, line: int | None, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


@dataclass(slots=True, eq=False)
class YamlNode:
    """A value and the line at which it starts."""

    line: int
    value: Scalar | list[YamlNode] | dict[str, YamlNode]
    size: int = 1
    """Number of values in it, including itself."""

    def plain(self) -> Any:
        """Return the value without line numbers."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def closest(self, location: Sequence[str | int]) -> YamlNode:
        """Return the node at ``location``, or its deepest existing ancestor."""
        node = self
        for part in location:
            child = node.child(part)
            if child is None:
                break
            node = child
        return node

    def child(self, part: str | int) -> YamlNode | None:
        """Return the node at a key or position; ``None`` if there is none."""
        if isinstance(self.value, dict) and isinstance(part, str):
            return self.value.get(part)
        if isinstance(self.value, list) and isinstance(part, int) and part < len(self.value):
            return self.value[part]
        return None

    def holds(self, location: Sequence[str | int]) -> bool:
        """Return whether the document contains a value at ``location``."""
        parent = self.closest(location[:-1])
        return parent is not self.closest(location)


class Parsed(NamedTuple):
    """One parsed document."""

    root: YamlNode
    values: int
    """Number of its values, of which ``MAX_VALUES`` are allowed; keys and aliases included."""
    anchored: bool
    """It has anchors."""


def read(text: str) -> YamlNode:
    """Parse one document; as ``parse``, but return its root only."""
    return parse(text).root


def parse(text: str) -> Parsed:
    """Parse one document.

    Raises:
        DocumentError: The text is not a valid document, or exceeds a bound.
    """
    if len(text) > MAX_BYTES or len(text.encode(errors="replace")) > MAX_BYTES:
        raise DocumentError(None, f"the text is larger than {MAX_BYTES // 2**20} MiB; split it")
    if text.lstrip()[:1] == "{":
        # JSON allows tabs between its tokens (never inside text), YAML does not.
        text = text.replace("\t", " ")
    try:
        builder = _Builder()
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        # libyaml reports an unexpected end of the text on the line after the last.
        line = min(mark.line + 1, max(1, len(text.splitlines()))) if mark else None
        raise DocumentError(line, f"this is not YAML: {what}") from None
    except yaml.YAMLError as error:
        first_line = str(error).partition("\n")[0]
        raise DocumentError(None, f"this is not YAML: {first_line}") from None
    if builder.root is None:
        raise DocumentError(None, "the text is empty; write at least `pools:`")
    return Parsed(builder.root, builder.total, bool(builder.anchors))


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end has not been parsed yet."""

    node: YamlNode
    anchor: str | None
    key: str | None = None
    key_line: int = 0
    merged: list[YamlNode] | None = None


class _Builder:
    """Builds nodes from parser events, without recursion."""

    def __init__(self) -> None:
        self.root: YamlNode | None = None
        self.anchors: dict[str, YamlNode | None] = {}
        self._stack: list[_Open] = []
        self.total = 0

    def take(self, event: Any) -> None:
        """Process one event of PyYAML's parser."""
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            if self.root is not None:
                raise DocumentError(line, "a second document starts here; keep one of them")
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open(event, line)
        elif isinstance(event, yaml.CollectionEndEvent):
            done = self._stack.pop()
            self._place(_close(done), done.anchor, line, values=1)
        elif isinstance(event, yaml.ScalarEvent):
            node = YamlNode(line, _scalar(event, line))
            self._place(node, event.anchor, line, values=1, is_plain=event.implicit[0])
        elif isinstance(event, yaml.AliasEvent):
            node = _aliased(self.anchors, event.anchor or "", line)
            if len(self._stack) + _depth(node) > MAX_DEPTH:
                raise DocumentError(line, f"nested more than {MAX_DEPTH} deep")
            self._place(node, None, line, values=node.size)

    def _open(self, event: Any, line: int) -> None:
        _refuse_tag(event, line, allowed=())
        if len(self._stack) == MAX_DEPTH:
            raise DocumentError(line, f"nested more than {MAX_DEPTH} deep")
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        value: list[YamlNode] | dict[str, YamlNode] = {}
        if isinstance(event, yaml.SequenceStartEvent):
            value = []
        self._stack.append(_Open(YamlNode(line, value), event.anchor))

    def _place(
        self, node: YamlNode, anchor: str | None, line: int, *, values: int, is_plain: bool = False
    ) -> None:
        self.total += values
        if self.total > MAX_VALUES:
            raise DocumentError(line, f"more than {MAX_VALUES} values (aliases counted); split it")
        if anchor is not None:
            self.anchors[anchor] = node
        if self._stack:
            _add(self._stack[-1], node, line, is_plain=is_plain)
        else:
            self.root = node


def _aliased(anchors: dict[str, YamlNode | None], name: str, line: int) -> YamlNode:
    if name not in anchors:
        raise DocumentError(line, f"alias *{name} has no anchor &{name} before it")
    node = anchors[name]
    if node is None:
        raise DocumentError(line, f"alias *{name} contains itself")
    return node


def _depth(node: YamlNode) -> int:
    if isinstance(node.value, dict):
        return 1 + max(map(_depth, node.value.values()), default=0)
    if isinstance(node.value, list):
        return 1 + max(map(_depth, node.value), default=0)
    return 0


def _add(parent: _Open, node: YamlNode, line: int, *, is_plain: bool) -> None:
    container = parent.node.value
    if isinstance(container, list):
        container.append(node)
        return
    if not isinstance(container, dict):
        raise TypeError(container)
    if parent.key is not None:
        _set(parent, container, node)
        return
    key = node.value
    if isinstance(key, list | dict):
        raise DocumentError(line, "a key must be text")
    if not isinstance(key, str):
        raise DocumentError(line, f'a key must be text; write "{_spelled(key)}" in quotes')
    if key in container:
        raise DocumentError(
            line,
            f"key '{key}' is already given in line {container[key].line}; keep one of them",
        )
    if key == "<<" and is_plain:
        parent.merged = []
    parent.key, parent.key_line = key, line


def _set(parent: _Open, container: dict[str, YamlNode], node: YamlNode) -> None:
    key, parent.key = parent.key or "", None
    if key == "<<" and parent.merged is not None:
        sources = node.value if isinstance(node.value, list) else [node]
        for source in sources:
            if not isinstance(source.value, dict):
                raise DocumentError(parent.key_line, "`<<` merges mappings only")
            parent.merged.append(source)
        return
    container[key] = node


def _close(done: _Open) -> YamlNode:
    container = done.node.value
    if isinstance(container, dict):
        for source in done.merged or ():
            if isinstance(source.value, dict):
                for key, node in source.value.items():
                    container.setdefault(key, node)
        done.node.size = 1 + sum(node.size for node in container.values())
    elif isinstance(container, list):
        done.node.size = 1 + sum(node.size for node in container)
    return done.node


def _refuse_tag(event: Any, line: int, allowed: tuple[str, ...]) -> None:
    if event.tag is not None and event.tag not in allowed:
        raise DocumentError(line, f"tag {event.tag!r} is not accepted; write plain values")


def _scalar(event: Any, line: int) -> Scalar:
    _refuse_tag(event, line, allowed=("tag:yaml.org,2002:str", "!"))
    text: str = event.value
    if not event.implicit[0]:
        return text
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return _SPECIAL.get(text.lower(), text)


def _spelled(value: Scalar) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
