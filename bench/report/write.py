"""Report files: Markdown with plots as separate files, and one self-contained HTML page."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from html import escape
from typing import TYPE_CHECKING, Any, Final

from bench.report.aims import aims
from bench.report.parts import Table
from bench.report.plots import png
from bench.report.tables import sections

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bench.report.parts import ReportSection

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 84rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums }
th, td { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid #ddd; font-size: 13px }
th:first-child, td:first-child { text-align: left }
img { max-width: 100%; display: inline-block; margin: .5rem }
.missed { background: #fbe9e7 } .undecided { background: #fff8e1 } .reached { background: #e8f5e9 }
main { overflow-x: auto }
"""
_READING: Final = (
    "Medians over runs, with their range in brackets. `-`: unknown. Paired comparisons are judged"
    " by the 95 % interval over seeds or rounds (Student's t of the paired differences): undecided"
    " if the interval contains the bound."
)
_VERDICTS: Final = ("reached", "missed", "undecided")
OPEN_VERDICTS: Final = ("missed", "undecided")
_TITLE: Final = "Tidegate beside its peers"
BEGIN: Final = "<!-- bench: begin -->"
END: Final = "<!-- bench: end -->"


def write_report(results: Mapping[str, Any], out: Path) -> list[Path]:
    """Write the report of ``results`` into a folder; return the main files.

    Without matplotlib the report has no plots and says so.

    Raises:
        OSError: A file cannot be written.
    """
    found = sections(results)
    verdicts = verdict_table(results)
    images, note = _drawn(found)
    _save(images, out)
    markdown, page = out / "report.md", out / "report.html"
    body = _markdown(results, verdicts, found, images, note)
    markdown.write_text(f"# {_TITLE}\n\n{body}\n", encoding="utf-8")
    page.write_text(_html(results, verdicts, found, images, note), encoding="utf-8")
    return [markdown, page]


def fill(results: Mapping[str, Any], page: Path) -> list[Path]:
    """Write machine, versions and the aims that were not reached between the markers of a page.

    Raises:
        OSError: A file cannot be read or written.
        ValueError: The page has no markers.
    """
    before, after = around(page)
    verdicts = verdict_table(results)
    open_ = [row for row in verdicts.rows if row[3] in OPEN_VERDICTS]
    counts = Counter(row[3] for row in verdicts.rows)
    said = f"Aims: {', '.join(f'{count} {name}' for name, count in sorted(counts.items()))}."
    table = Table("Aims that were not reached", verdicts.heads, open_)
    body = "\n\n".join([*about(results), said, markdown_table(table)])
    page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")
    return [page]


def around(page: Path) -> tuple[str, str]:
    """Return the text before and after a page's markers.

    Raises:
        OSError: The page cannot be read.
        ValueError: The page has no markers.
    """
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no lines {BEGIN} and {END} to write between")
    return before, after


def _drawn(found: Sequence[ReportSection]) -> tuple[dict[int, list[tuple[str, bytes]]], str]:
    """Return the plots of each section, and a note if matplotlib is missing."""
    try:
        return {
            number: [
                (f"{section.title}-{index}.png", png(plot))
                for index, plot in enumerate(section.plots, 1)
            ]
            for number, section in enumerate(found)
        }, ""
    except ImportError:
        return {}, "No plots: pip install -e '.[bench]' in the checkout."


def _save(images: Mapping[int, Sequence[tuple[str, bytes]]], folder: Path) -> None:
    for drawn in images.values():
        for name, data in drawn:
            (folder / name).write_bytes(data)


def verdict_table(results: Mapping[str, Any]) -> Table:
    """Return the table of targets and verdicts."""
    return Table(
        "Aims",
        ("aim", "wanted", "got", "verdict", "what the results show"),
        [(aim.name, aim.wanted, aim.got, aim.verdict, aim.why) for aim in aims(results)],
    )


def about(results: Mapping[str, Any]) -> list[str]:
    """Return lines about the machine and the versions."""
    machine = results.get("machine", {})
    versions = dict(machine.get("versions", {}))
    for suite in results["suites"].values():
        versions |= suite.get("peers", {})
    where = (
        f"{machine.get('cpu')}, {machine.get('cores')} cores, {machine.get('memory_gb')} GB, Linux"
        f" {machine.get('kernel')}, Python {machine.get('python')}; commit {machine.get('commit')}."
    )
    return [
        where,
        ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
        _READING,
    ]


def markdown_table(table: Table) -> str:
    """Return a table in Markdown."""
    lines = [
        "| " + " | ".join(table.heads) + " |",
        "|" + "---|" * len(table.heads),
        *("| " + " | ".join(_cell(value) for value in row) + " |" for row in table.rows),
    ]
    return f"**{table.title}**\n\n" + "\n".join(lines)


def _cell(value: str) -> str:
    return value.replace("|", "\\|")


def _markdown(
    results: Mapping[str, Any],
    verdicts: Table,
    found: Sequence[ReportSection],
    images: Mapping[int, Sequence[tuple[str, bytes]]],
    note: str,
) -> str:
    parts = [*about(results), *([note] if note else []), markdown_table(verdicts)]
    for number, section in enumerate(found):
        parts += [f"## {section.title}", *section.text]
        parts += [markdown_table(table) for table in section.tables]
        parts += [f"![{name}]({name})" for name, _ in images.get(number, ())]
    return "\n\n".join(parts)


def _html(
    results: Mapping[str, Any],
    verdicts: Table,
    found: Sequence[ReportSection],
    images: Mapping[int, Sequence[tuple[str, bytes]]],
    note: str,
) -> str:
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        f"<title>{_TITLE}</title><style>{_STYLE}</style><main><h1>{_TITLE}</h1>",
        *(f"<p>{escape(line)}</p>" for line in (*about(results), note) if line),
        _html_table(verdicts),
    ]
    for number, section in enumerate(found):
        parts.append(f"<h2>{escape(section.title)}</h2>")
        parts += [f"<p>{escape(text)}</p>" for text in section.text]
        parts += [_html_table(table) for table in section.tables]
        parts += [
            f"<img alt='{escape(name)}' src='data:image/png;base64,{b64encode(data).decode()}'>"
            for name, data in images.get(number, ())
        ]
    return "\n".join(parts) + "</main></html>\n"


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.heads)
    body = []
    for row in table.rows:
        kind = next((value for value in row if value in _VERDICTS), "")
        cells = "".join(f"<td>{escape(value)}</td>" for value in row)
        body.append(f"<tr class='{kind}'>{cells}</tr>")
    return f"<h3>{escape(table.title)}</h3><table><tr>{head}</tr>{''.join(body)}</table>"
