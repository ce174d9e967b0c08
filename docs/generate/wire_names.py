"""Tables of header names, metadata keys and resource names, from the module that holds them."""

from __future__ import annotations

import ast
import inspect
import re
from typing import TYPE_CHECKING, Final

from pages import code, table

from tidegate_api import names

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECTION: Final = re.compile(r"# --- (.+?) -+")
_STRIPPED: Final = "Removed from clients' requests"
_TITLES: Final = ("name", "meaning")


def tables() -> dict[str, str]:
    """Return a table of each section of the module, by the section's title."""
    texts: dict[str, list[tuple[str, str]]] = {}
    source = inspect.getsource(names)
    titles = [
        (number, found[1].split(" (")[0].split(":")[0])
        for number, line in enumerate(source.splitlines(), 1)
        if (found := _SECTION.match(line))
    ]
    for line, name, meaning in _constants(source):
        title = [title for number, title in titles if number < line][-1]
        value = getattr(names, name)
        if isinstance(value, str) and not name.startswith("_"):
            if not meaning:
                raise ValueError(f"{names.__name__}.{name} has no docstring")
            texts.setdefault(title, []).append((code(value), meaning.replace("``", "`")))
    found = {title: table(_TITLES, rows) for title, rows in texts.items()}
    return {**found, _STRIPPED: ", ".join(map(code, sorted(names.STRIPPED_HEADERS))) + "."}


def _constants(source: str) -> Iterator[tuple[int, str, str]]:
    body = ast.parse(source).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            told = following.value if isinstance(following, ast.Expr) else None
            meaning = told.value if isinstance(told, ast.Constant) else ""
            yield node.lineno, node.target.id, str(meaning)
