"""Cutting of a fleet file into the texts of its pools and endpoints. Pure.

An edit changes few lines of a file, so the texts of most pools are known from the last time. A cut
is a guess by the indentation of lines; whoever uses it parses all parts and checks with ``holds``
that the guess was right.

Rules:

1. Only block lists are cut: ``pools:`` at the start of a line and, in a pool, ``endpoints:``, each
   exactly once, followed by items that begin with ``- `` at one indentation.
2. The rest of the text gets ``PLACEHOLDER`` as the only item. If the parser finds it as the list's
   only value, and on its line, the lines that were cut out are items of this list: text inside of
   a quoted or block scalar starts no value.
3. An item that ends inside of a quoted scalar or a flow collection does not parse by itself.
4. Anchors connect parts, so a text with an anchor must be parsed as a whole.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xds_server.fleet.document import YamlNode

PLACEHOLDER: Final = "tidegate-placeholder"

_POOLS: Final = re.compile(r"^pools:[ ]*(?:#[^\n]*)?\n", re.MULTILINE)
_ENDPOINTS: Final = re.compile(r"^ +endpoints:[ ]*(?:#[^\n]*)?\n", re.MULTILINE)
_FIRST_ITEM: Final = re.compile(r"(?:[ ]*(?:#[^\n]*)?\n)*( *)- ")
_OTHER_BREAKS: Final = re.compile("[\r\t\x85\u2028\u2029\ufeff]")
"""Characters that end a line for YAML but not here, or count as indentation elsewhere."""

_POOL_HEAD: Final = "pools:\n"
_ENDPOINT_HEAD: Final = "pools:\n- endpoints:\n"
POOL_VALUES: Final = 3
"""Values around a pool in ``pool_document``: the mapping, its key and the list."""
ENDPOINT_VALUES: Final = 6
"""The same of an endpoint in ``endpoint_document``."""


class Slices(NamedTuple):
    """A text whose list was cut out."""

    rest: str
    """The text with ``PLACEHOLDER`` as the only item of the list."""
    line: int
    """The placeholder's line, from 1."""
    items: tuple[str, ...]
    """The texts of the items, each with its line break."""


def cut_pools(text: str) -> Slices | None:
    """Return a fleet file without its pools; ``None`` if it has no such form."""
    return None if _OTHER_BREAKS.search(text) else _cut(text, _POOLS, 0)


def cut_endpoints(pool: str) -> Slices | None:
    """Return a document of a pool's text without its endpoints; ``None`` as above."""
    return _cut(pool_document(pool), _ENDPOINTS, len(_POOL_HEAD))


def pool_document(pool: str) -> str:
    """Return the document of one pool's text, at the depth that it has in the file."""
    return _POOL_HEAD + pool


def endpoint_document(endpoint: str) -> str:
    """Return the document of one endpoint's text, at the depth that it has in the file."""
    return _ENDPOINT_HEAD + endpoint


def holds(cut: Slices, found: YamlNode | None) -> bool:
    """Return whether the list of the parsed rest proves that the cut was right."""
    if found is None or not isinstance(found.value, list) or len(found.value) != 1:
        return False
    (item,) = found.value
    return item.value == PLACEHOLDER and item.line == cut.line


def only(root: YamlNode, path: Sequence[str | int]) -> YamlNode | None:
    """Return the node at ``path`` if no other value is beside it, at any level."""
    node = root
    for part in path:
        if not isinstance(node.value, list | dict) or len(node.value) != 1:
            return None
        child = node.child(part)
        if child is None:
            return None
        node = child
    return node


def _cut(text: str, key: re.Pattern[str], start: int) -> Slices | None:
    found = list(key.finditer(text, start))
    if len(found) != 1:
        return None
    begin = found[0].end()
    first = _FIRST_ITEM.match(text, begin)
    if first is None:
        return None
    indent = len(first[1])
    bounds, end = [], len(text)
    # Lines whose first character is at the items' indentation or before it.
    for line in re.compile(rf"^ {{0,{indent}}}[^ \n#]", re.MULTILINE).finditer(text, begin):
        at = line.start()
        if line.end() - at == indent + 1 and text[line.end() - 1 : line.end() + 1] in {"- ", "-\n"}:
            bounds.append(at)
        else:
            end = at
            break
    if not bounds:
        return None
    items = tuple(text[one:two] for one, two in zip(bounds, [*bounds[1:], end], strict=True))
    head = text[: bounds[0]]
    rest = f"{head}{first[1]}- {PLACEHOLDER}\n{text[end:]}"
    return Slices(rest, head.count("\n") + 1, items)
