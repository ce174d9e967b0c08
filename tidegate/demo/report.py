"""Result of a phase, and its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.terminal.output import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console


@dataclass(frozen=True, slots=True)
class DemoVerdict:
    """Whether a phase passed, with a sentence that says why."""

    holds: bool
    text: str

    def __str__(self) -> str:
        """Return the verdict line."""
        return f"{'ok' if self.holds else 'NOT ok'}: {self.text}"


@dataclass(frozen=True, slots=True)
class PhaseFinding:
    """The result of one phase."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    verdict: DemoVerdict
    note: str = ""
    """Explanation of the table."""


def judge(problems: Sequence[str], otherwise: str) -> DemoVerdict:
    """Return a passing verdict with the text ``otherwise`` iff ``problems`` is empty."""
    return DemoVerdict(not problems, "; ".join(problems) if problems else otherwise)


def milliseconds(seconds: float | None) -> str | None:
    """Format a duration in milliseconds; unknown stays ``None``."""
    return None if seconds is None else f"{seconds * 1000:.0f} ms"


def percent(share: float | None) -> str | None:
    """Format a fraction in percent; unknown stays ``None``."""
    return None if share is None else f"{share * 100:.1f}%"


def show(console: Console, number: int, finding: PhaseFinding) -> None:
    """Print the result of a phase."""
    console.print()
    console.rule(f"{number}. {finding.title}", align="left", characters="─")
    if finding.note:
        console.print(finding.note, markup=False)
    console.print(table(finding.columns, finding.rows))
    style = "green" if finding.verdict.holds else "bold red"
    console.print(str(finding.verdict), style=style, markup=False)


def show_summary(console: Console, findings: Sequence[PhaseFinding], run_folder: object) -> None:
    """Print the verdicts of all phases."""
    console.print()
    console.rule("summary", align="left", characters="─")
    for number, finding in enumerate(findings, 1):
        style = "green" if finding.verdict.holds else "bold red"
        console.print(f"{number}. {finding.title}: {finding.verdict}", style=style, markup=False)
    held = sum(finding.verdict.holds for finding in findings)
    console.print(f"{held} of {len(findings)} passed; logs are in {run_folder}", markup=False)
