"""Cutting of a fleet file into the texts of its pools and endpoints. Pure.

An edit changes few lines of a file, so the texts of most pools are known from the last time. A cut
is a guess by the indentation of lines; the caller parses all parts and checks with ``holds``
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
    from collections.abc import Container, Sequence

    from xds_server.fleet.document import YamlNode

PLACEHOLDER: Final = "tidegate-placeholder"

_POOLS: Final = re.compile(r"^pools:[ ]*(?:#[^\n]*)?\n", re.MULTILINE)
_ENDPOINTS: Final = re.compile(r"^ +endpoints:[ ]*(?:#[^\n]*)?\n", re.MULTILINE)
_FIRST_ITEM: Final = re.compile(r"(?:[ ]*(?:#[^\n]*)?\n)*( *)- ")
_OTHER_BREAKS: Final = re.compile("[\r\t\x85\u2028\u2029\ufeff]")
"""Characters that end a line for YAML but not here, or count as indentation elsewhere."""

_POOL_HEAD: Final = "pools:\n"
_ENDPOINT_HEAD: Final = "pools:\n- endpoints:\n"
_MAX_WORDS: Final = 64
"""Above it a key is looked for in all lines: words on one long line are not looked at singly."""
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


def cut_pools(text: str, known: Container[str] = ()) -> Slices | None:
    """Return a fleet file without its pools; ``None`` if it has no such form.

    Args:
        text: The file.
        known: Items of earlier cuts, whose lines are not looked at again.
    """
    plain = text.isascii() and "\r" not in text and "\t" not in text
    if not plain and _OTHER_BREAKS.search(text):
        return None
    return _cut(text, "pools:", _POOLS, 0, known)


def cut_endpoints(pool: str, known: Container[str] = ()) -> Slices | None:
    """Return a document of a pool's text without its endpoints; ``None`` as above."""
    return _cut(pool_document(pool), "endpoints:", _ENDPOINTS, len(_POOL_HEAD), known)


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


def _cut(
    text: str, word: str, key: re.Pattern[str], start: int, known: Container[str]
) -> Slices | None:
    found = _keys(text, word, key, start)
    if len(found) != 1:
        return None
    begin = found[0].end()
    first = _FIRST_ITEM.match(text, begin)
    if first is None:
        return None
    items, end = _items(text, first.start(1), first[1], known)
    head = text[: first.start(1)]
    rest = f"{head}{first[1]}- {PLACEHOLDER}\n{text[end:]}"
    return Slices(rest, head.count("\n") + 1, items)


def _keys(text: str, word: str, key: re.Pattern[str], start: int) -> list[re.Match[str]]:
    """Return the lines that consist of a key."""
    if text.count(word, start) > _MAX_WORDS:
        return list(key.finditer(text, start))
    found, at = [], text.find(word, start)
    while at >= 0:
        line = key.match(text, max(start, text.rfind("\n", 0, at) + 1))
        if line is not None:
            found.append(line)
        at = text.find(word, at + 1 if line is None else line.end())
    return found


def _items(
    text: str, begin: int, indent: str, known: Container[str]
) -> tuple[tuple[str, ...], int]:
    """Return the items of a list, the first of which begins at ``begin``, and where it ends."""
    # Lines whose first character is at the items' indentation or before it.
    outer = re.compile(rf"^ {{0,{len(indent)}}}[^ \n#]", re.MULTILINE)
    marks = (f"{indent}- ", f"{indent}-\n")
    next_item = f"\n{marks[0]}" if f"\n{marks[1]}" not in text else None
    items: list[str] = []
    while True:
        after = len(text)
        if next_item is not None:
            after = text.find(next_item, begin) + 1 or after
        if next_item is None or text[begin:after] not in known:
            line = outer.search(text, text.find("\n", begin) + 1 or len(text), after)
            after = after if line is None else line.start()
        items.append(text[begin:after])
        begin = after
        if not text.startswith(marks, begin):
            return tuple(items), begin
