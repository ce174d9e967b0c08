"""Reports as one self-contained HTML file with tables, plots and settings."""

from __future__ import annotations

from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Final

from bench.simulate.plots import FIGURES, svg
from bench.simulate.report import cells, columns, headline, titles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.simulate.report import Report

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
main { overflow-x: auto }
summary { cursor: pointer }
svg { max-width: 100%; height: auto; display: block; margin: 1rem 0 }
"""


_READING: Final = (
    "Simulated numbers: times in seconds, ± is half the 95 % bootstrap interval over seeds, the"
    " last column is paired by seed."
)


def page(*reports: Report) -> str:
    """Return the HTML page of one or several reports."""
    alone = len(reports) == 1
    title = f"{reports[0].workload}: routing policies" if alone else "Routing policies"
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        f"<title>{escape(title)}</title><style>{_STYLE}</style><main>",
        f"<h1>{escape(title)}</h1><p>{_READING}</p>",
    ]
    if not alone:
        links = [
            f"<li><a href='#c{number}'>{escape(each.workload)}</a></li>"
            for number, each in enumerate(reports)
        ]
        parts.append(f"<ul>{''.join(links)}</ul>")
    for number, report in enumerate(reports):
        parts += _chapter(report, f"c{number}", alone)
    return "\n".join(parts) + "</main></html>\n"


def _chapter(report: Report, anchor: str, alone: bool) -> list[str]:
    heading = "" if alone else f"<h2 id='{anchor}'>{escape(report.workload)}</h2>"
    parts = [f"{heading}<p>{escape(headline(report))}</p>"]
    for key, title in titles(report).items():
        rows = [cells(row) for row in report.rows if (row.load, row.rate) == key]
        parts.append(f"<h3>{escape(title)}</h3>")
        parts.append(_table(columns(report), rows))
    figures = "\n".join(svg(report, metric) for metric in FIGURES)
    parts.append(figures if alone else f"<details><summary>Plots</summary>{figures}</details>")
    settings = asdict(report.scenario)
    settings |= {f"engine.{name}": value for name, value in settings.pop("engine").items()}
    table = _table(["setting", "value"], [[name, str(value)] for name, value in settings.items()])
    parts.append(
        f"<h3>Settings</h3>{table}"
        if alone
        else f"<details><summary>Settings</summary>{table}</details>"
    )
    return parts


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(value)}</td>" for value in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
