"""Pages with generated parts, and the Markdown that the parts are made of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

_PART: Final = re.compile(
    r"<!-- generated: (?P<kind>[a-z]+) (?P<words>[^>]+?) -->\n(?P<text>.*?)<!-- generated: end -->",
    re.DOTALL,
)
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """A Markdown file of the documentation."""

    path: Path
    text: str

    @property
    def parts(self) -> list[tuple[str, str]]:
        """Kind and words of each generated part, in their order."""
        return [(part["kind"], part["words"]) for part in _PART.finditer(self.text)]

    def anchor(self, kind: str, words: str) -> str | None:
        """Return the anchor of the heading above a part; `None` where the page lacks the part."""
        for part in _PART.finditer(self.text):
            if (part["kind"], part["words"]) == (kind, words):
                return slug(_HEADING.findall(self.text[: part.start()])[-1])
        return None

    def filled(self, text: Callable[[str, str], str]) -> str:
        """Return the page's text with each part replaced by `text(kind, words)`."""

        def part(found: re.Match[str]) -> str:
            kind, words = found["kind"], found["words"]
            return (
                f"<!-- generated: {kind} {words} -->\n\n{text(kind, words)}\n\n"
                "<!-- generated: end -->"
            )

        return _PART.sub(part, self.text)


def read_pages(folder: Path) -> list[Page]:
    """Return all Markdown pages under a folder."""
    return [Page(path, path.read_text("utf-8")) for path in sorted(folder.rglob("*.md"))]


def slug(heading: str) -> str:
    """Return the anchor that GitHub and MyST give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: object) -> str:
    """Return text as inline code."""
    return f"`{text}`"
