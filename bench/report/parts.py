"""Parts of a report, tables, charts and curves, and how numbers are written in them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.suites.summary import median_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class Table:
    """One table."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar chart of medians, with their range over runs as whiskers."""

    title: str
    unit: str
    values: Mapping[str, Mapping[str, float]]
    """Label -> ``median``, ``low`` and ``high``."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A plot on logarithmic axes with the fitted growth."""

    title: str
    across: str
    unit: str
    points: Sequence[Mapping[str, float]]
    fit: Mapping[str, Any] | None
    """``a``, ``b`` and ``r2`` of ``a * size ** b``; ``r2`` may be ``None``."""


@dataclass(slots=True)
class ReportSection:
    """Section of one suite."""

    title: str
    text: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    plots: list[Bars | Curve] = field(default_factory=list)


def number(value: float | None, digits: int = 2) -> str:
    """Format a number; unknown is ``-``."""
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def span(value: Mapping[str, float] | None, digits: int = 2) -> str:
    """Format a median, with its range if there are several runs."""
    if value is None:
        return UNKNOWN
    text = number(value["median"], digits)
    if value["low"] == value["high"]:
        return text
    return f"{text} ({number(value['low'], digits)}-{number(value['high'], digits)})"


def grouped(
    rows: Iterable[Mapping[str, Any]], *keys: str
) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    """Group rows by the values of keys, in order of first appearance."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def name_missing(suite: Mapping[str, Any], section: ReportSection) -> None:
    """Add the contenders that were not measured, and why."""
    for package, why in suite["missing"].items():
        section.text.append(f"{package} could not be installed and was not measured: {why}")


def median(runs: Sequence[Mapping[str, Any]], *path: str) -> float:
    """Return the median of a number of runs; unknown is ``nan``."""
    found = median_of(runs, *path)
    return float("nan") if found is None else found["median"]
