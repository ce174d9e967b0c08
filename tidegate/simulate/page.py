"""A report as one HTML file that needs nothing else: tables, plots, the settings."""

from __future__ import annotations

from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Final

from tidegate.simulate.plots import FIGURES, svg
from tidegate.simulate.report import cells, columns, headline, titles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate.simulate.report import Report

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
svg { max-width: 100%; height: auto; display: block; margin: 1rem 0 }
"""


_READING: Final = (
    "Simulated numbers: times in seconds, ± is half the 95 % bootstrap interval over seeds, the"
    " last column is paired by seed."
)


def page(report: Report) -> str:
    """Return the page."""
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        f"<title>{escape(report.workload)}: routing policies</title><style>{_STYLE}</style>",
        f"<h1>Routing policies on {escape(report.workload)}</h1>",
        f"<p>{escape(headline(report))} {_READING}</p>",
    ]
    for key, title in titles(report).items():
        rows = [cells(row) for row in report.rows if (row.load, row.rate) == key]
        parts.append(f"<h2>{escape(title)}</h2>")
        parts.append(_table(columns(report), rows))
    parts.extend(svg(report, metric) for metric in FIGURES)
    settings = asdict(report.scenario)
    settings |= {f"engine.{name}": value for name, value in settings.pop("engine").items()}
    parts.append("<h2>Settings</h2>")
    parts.append(
        _table(["setting", "value"], [[name, str(value)] for name, value in settings.items()])
    )
    return "\n".join(parts) + "</html>\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(value)}</td>" for value in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
