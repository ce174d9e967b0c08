"""A screen of text: what fits of ``top``'s rows into a width and a height. Pure.

Rules:

1. No line is longer than the width; no control character of a name reaches the terminal.
2. Where a table is too wide, its least important columns go first; the column of words is shortened
   before any other goes.
3. Where there are too many rows, replicas are cut before variants, and the last line counts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidegate.cli.top.model import Sort, sorted_replicas, sorted_variants
from tidegate.cli.views import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tidegate.cli.top.model import Glance, ReplicaRow, VariantRow

UNKNOWN: Final = "-"
KEYS: Final = "q quit   s sort   r reverse"
LEAST_WORDS: Final = 8
"""Least width of a column of words before another column goes."""
GAP: Final = 2


class Column(NamedTuple):
    """A column of a table."""

    title: str
    value: Callable[[Any], str]
    importance: int
    """Columns of the highest number go first."""
    right: bool = False
    words: bool = False
    """It may be shortened."""


def _number(value: float | None, form: str = "{:g}") -> str:
    return UNKNOWN if value is None else form.format(value)


VARIANTS: Final = (
    Column("POOL", lambda e: e.pool, 2),
    Column("VARIANT", lambda e: e.variant, 1),
    Column("USABLE", lambda e: f"{e.usable}/{e.replicas}", 1),
    Column("REQ/S", lambda e: _number(e.rate, "{:.1f}"), 1, right=True),
    Column("ERRORS", lambda e: _number(e.errors), 1, right=True),
    Column("IN FLIGHT", lambda e: _number(e.in_flight), 3, right=True),
    Column("P50", lambda e: seconds(e.p50) or UNKNOWN, 4, right=True),
    Column("P99", lambda e: seconds(e.p99) or UNKNOWN, 2, right=True),
    Column("FIRST BYTE", lambda e: seconds(e.first_byte_p50) or UNKNOWN, 5, right=True),
    Column("WEIGHT", lambda e: str(e.weight), 6, right=True),
)
REPLICAS: Final = (
    Column("ENDPOINT", lambda e: e.endpoint, 1),
    Column("POOL", lambda e: e.pool, 5),
    Column("VARIANT", lambda e: e.variant, 4),
    Column("STATE", lambda e: e.state or UNKNOWN, 1, words=True),
    Column("REQ/S", lambda e: _number(e.rate, "{:.1f}"), 3, right=True),
    Column("ERRORS", lambda e: _number(e.errors), 2, right=True),
    Column("IN FLIGHT", lambda e: _number(e.in_flight), 2, right=True),
    Column("MEAN", lambda e: seconds(e.mean_s) or UNKNOWN, 3, right=True),
    Column("PEERS", lambda e: seconds(e.peers_s) or UNKNOWN, 4, right=True),
    Column("HOUR", lambda e: seconds(e.hour_s) or UNKNOWN, 5, right=True),
    Column("AGE", lambda e: _number(e.age_s, "{:.1f} s"), 6, right=True),
)


def screen(
    found: Glance,
    width: int,
    height: int,
    sort: Sort = Sort.NAME,
    *,
    reverse: bool = False,
    trouble: str = "",
    keys: bool = False,
) -> list[str]:
    """Return the lines of one screen.

    Args:
        found: What is shown.
        width: Columns of the terminal.
        height: Lines of the terminal; 0 = as many as there are rows.
        sort: By what rows are sorted.
        reverse: In the other direction.
        trouble: Why what is shown is not new; empty = it is.
        keys: Name the keys in the last line.
    """
    head = [f"{found.verdict or 'no verdict'}: {found.why}" if found.why else found.verdict]
    if trouble:
        head.append(trouble)
    change = "" if found.settled else ", a change is under way"
    refused = f", {found.refused} requests refused in the last minute" if found.refused else ""
    order = f"{sort.value}{' (reversed)' if reverse else ''}"
    head.append(f"revision {found.revision}{change}, {found.clients} clients{refused}; by {order}")
    head += found.canaries
    foot = [KEYS] if keys else []
    room = max(0, height - len(head) - len(foot) - 4) if height else None
    variants: list[VariantRow] = sorted_variants(found.variants, sort, reverse=reverse)
    replicas: list[ReplicaRow] = sorted_replicas(found.replicas, sort, reverse=reverse)
    first = None if room is None else max(1, min(len(variants), room - min(len(replicas), 3)))
    upper = _table(VARIANTS, variants, width, first)
    second = None if room is None else max(0, room - len(upper) + 1)
    lower = _table(REPLICAS, replicas, width, second)
    lines = [*head, "", *upper, "", *lower]
    if height:
        lines = [*lines[: max(1, height - len(foot))], *foot][:height]
    return [_shortened(_plain(line), width) for line in lines]


def _table(
    columns: Sequence[Column], rows: Sequence[Any], width: int, most: int | None
) -> list[str]:
    """Return a title line and at most ``most`` lines, the last of which counts the omitted."""
    shown, more = list(rows), 0
    if most is not None and len(rows) > most:
        shown = shown[: max(0, most - 1)]
        more = len(rows) - len(shown)
    kept = list(columns)
    while True:
        cells = [[_plain(each.value(row)) for each in kept] for row in shown]
        widths = [
            max([len(each.title), *(len(line[at]) for line in cells)])
            for at, each in enumerate(kept)
        ]
        over = sum(widths) + GAP * (len(kept) - 1) - width
        words = next((at for at, each in enumerate(kept) if each.words), None)
        if over > 0 and words is not None and widths[words] - over >= LEAST_WORDS:
            widths[words] -= over
            over = 0
        last = max(each.importance for each in kept)
        if over <= 0 or last == 1:
            break
        kept.remove(next(each for each in reversed(kept) if each.importance == last))
    lines = [_line([each.title for each in kept], kept, widths)]
    lines += [_line(line, kept, widths) for line in cells]
    if more:
        lines.append(f"... and {more} more")
    return lines


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    parts = [
        _shortened(cell, size).rjust(size) if each.right else _shortened(cell, size).ljust(size)
        for cell, each, size in zip(cells, columns, widths, strict=True)
    ]
    return (" " * GAP).join(parts).rstrip()


def _shortened(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    return f"{text[: max(0, width - 1)]}…" if width > 0 else ""


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)
