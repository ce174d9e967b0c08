"""Output of findings."""

from __future__ import annotations

import io

from rich.console import Console

from tidegate.demo.report import (
    DemoVerdict,
    PhaseFinding,
    show,
    show_summary,
)

GOOD = PhaseFinding(
    "gates open", ("gate", "#count"), (("north", 3), ("south", None)), DemoVerdict(True, "3")
)
BAD = PhaseFinding(
    "gates close", ("gate",), (("north",),), DemoVerdict(False, "stuck [red]"), "a note"
)


def printed(*findings: PhaseFinding, summary: bool = False) -> str:
    """Return the output on a console that is not a terminal."""
    stream = io.StringIO()
    console = Console(file=stream, width=100, highlight=False)
    if summary:
        show_summary(console, findings, "run-1")
    else:
        for finding in findings:
            show(console, 1, finding)
    return stream.getvalue()


def test_a_finding_shows_its_table_and_verdict() -> None:
    """Title, rows and the verdict line are printed, an unknown value as a dash."""
    text = printed(GOOD)
    assert "1. gates open" in text
    assert "north      3" in text
    assert "south      -" in text
    assert text.rstrip().endswith("ok: 3")


def test_a_failed_phase_is_marked() -> None:
    """The verdict line starts with NOT ok; text that looks like markup is printed unchanged."""
    text = printed(BAD)
    assert "NOT ok: stuck [red]" in text
    assert "a note" in text
    assert "\x1b" not in text


def test_the_summary_counts_passed_phases() -> None:
    """Every verdict is repeated, with the count and the run folder."""
    text = printed(GOOD, BAD, summary=True)
    assert "1. gates open: ok: 3" in text
    assert "2. gates close: NOT ok" in text
    assert "1 of 2 passed; logs are in run-1" in text
