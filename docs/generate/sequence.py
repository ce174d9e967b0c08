"""Sequence diagrams as SVG, from text in the manner of Mermaid.

A source has a line `title TEXT`, then `participant ID as NAME` for each column, then steps from top
to bottom: `A->>B: TEXT` is a message, `A-->>B: TEXT` an answer, `note A: TEXT` or `note A,B: TEXT`
a box over one or more columns, `phase: TEXT` a line across. Lines with `#` are comments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from textwrap import wrap
from typing import Final

_COLUMN: Final = 250
_MARGIN: Final = 130
_TOP: Final = 90
_LINE: Final = 17
_CHAR: Final = 6.4
"""Width of a character of the text, on average."""
_STEP: Final = re.compile(r"(\w+)(--?)>>(\w+): (.+)")
_STYLE: Final = """
    .bg { fill: #ffffff }
    .head { fill: #ecfeff; stroke: #0e7490; stroke-width: 2 }
    .name { font-size: 16px; font-weight: 600; fill: #0f172a }
    .life { stroke: #94a3b8; stroke-width: 1.5; stroke-dasharray: 3 5 }
    .call { stroke: #0f172a; stroke-width: 2 }
    .answer { stroke: #0e7490; stroke-width: 2; stroke-dasharray: 7 5 }
    .note { fill: #fffbeb; stroke: #b45309; stroke-width: 1 }
    .phase { stroke: #cbd5e1; stroke-width: 1 }
    .title { font-size: 12.5px; font-weight: 600; fill: #64748b }
    .text { font-size: 12.5px; fill: #334155 }
    .title, .text { paint-order: stroke; stroke: #ffffff; stroke-width: 3 }
"""


@dataclass
class _Drawing:
    columns: dict[str, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    title: str = ""
    y: int = _TOP
    parts: list[str] = field(default_factory=list)

    @property
    def width(self) -> int:
        return 2 * _MARGIN + _COLUMN * (len(self.names) - 1)

    def text(self, x: float, lines: list[str], y: int, kind: str = "text") -> None:
        for number, line in enumerate(lines):
            self.parts.append(
                f'<text class="{kind}" x="{x:g}" y="{y + number * _LINE}" text-anchor="middle">'
                f"{escape(line)}</text>"
            )


def svg(source: str) -> str:
    """Return the drawing of a source.

    Raises:
        ValueError: A line is none of the known ones.
    """
    drawing = _Drawing()
    for line in filter(None, (each.split("#")[0].strip() for each in source.splitlines())):
        _read(drawing, line)
    height = drawing.y + 10
    lives = "".join(
        f'\n  <line class="life" x1="{x}" y1="52" x2="{x}" y2="{height - 10}"/>'
        f'\n  <rect class="head" x="{x - 85}" y="14" width="170" height="38" rx="6"/>'
        f'\n  <text class="name" x="{x}" y="39" text-anchor="middle">{escape(name)}</text>'
        for x, name in zip(drawing.columns.values(), drawing.names, strict=True)
    )
    body = "".join(f"\n  {part}" for part in drawing.parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {drawing.width} {height}" '
        'role="img" aria-labelledby="title" font-family="ui-sans-serif, system-ui, sans-serif">\n'
        f'  <title id="title">{escape(drawing.title)}</title>\n  <style>{_STYLE}  </style>\n'
        f"  <defs>{_marker('call', '#0f172a')}{_marker('answer', '#0e7490')}</defs>\n"
        f'  <rect class="bg" width="{drawing.width}" height="{height}"/>{lives}{body}\n</svg>\n'
    )


def _marker(name: str, colour: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" '
        'markerHeight="9" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path d="M0 0 10 5 0 10z" fill="{colour}"/></marker>'
    )


def _read(drawing: _Drawing, line: str) -> None:
    kind, _, rest = line.partition(" ")
    if kind == "title":
        drawing.title = rest
    elif kind == "participant":
        name, _, shown = rest.partition(" as ")
        drawing.columns[name] = _MARGIN + _COLUMN * len(drawing.names)
        drawing.names.append(shown)
    elif kind == "note":
        names, _, text = rest.partition(": ")
        _note(drawing, [drawing.columns[name] for name in names.split(",")], text)
    elif kind == "phase:":
        _phase(drawing, rest)
    elif found := _STEP.fullmatch(line):
        start, dash, end, text = found.groups()
        _arrow(drawing, drawing.columns[start], drawing.columns[end], dash == "--", text)
    else:
        raise ValueError(f"no step of a sequence: {line!r}")


def _arrow(drawing: _Drawing, start: int, end: int, answer: bool, text: str) -> None:
    lines = wrap(text, int((abs(end - start) - 20) / _CHAR))
    drawing.text((start + end) / 2, lines, drawing.y)
    drawing.y += len(lines) * _LINE - 8
    kind = "answer" if answer else "call"
    tip = end - 3 if end > start else end + 3
    drawing.parts.append(
        f'<line class="{kind}" x1="{start}" y1="{drawing.y}" x2="{tip}" y2="{drawing.y}" '
        f'marker-end="url(#{kind})"/>'
    )
    drawing.y += 30


def _note(drawing: _Drawing, over: list[int], text: str) -> None:
    left, right = min(over) - 110, max(over) + 110
    lines = wrap(text, int((right - left - 16) / _CHAR))
    height = len(lines) * _LINE + 12
    drawing.parts.append(
        f'<rect class="note" x="{left}" y="{drawing.y - 12}" width="{right - left}" '
        f'height="{height}" rx="4"/>'
    )
    drawing.text((left + right) / 2, lines, drawing.y + 6)
    drawing.y += height + 18


def _phase(drawing: _Drawing, text: str) -> None:
    drawing.parts.append(
        f'<line class="phase" x1="10" y1="{drawing.y - 4}" x2="{drawing.width - 10}" '
        f'y2="{drawing.y - 4}"/>'
    )
    drawing.parts.append(f'<text class="title" x="12" y="{drawing.y + 13}">{escape(text)}</text>')
    drawing.y += 40
