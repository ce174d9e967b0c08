"""Tables of the law of blame, from its rows."""

from __future__ import annotations

from pages import code, table

from ext_proc.blame.law import RULES, SIGNS, Mark, Marks
from ext_proc.blame.retries import RETRIES


def tables() -> dict[str, str]:
    """Return the table of verdicts and that of retries."""
    return {
        "verdicts": table(
            ("evidence; the first row that holds", "to blame", *Marks._fields, "outcome"),
            (
                (rule.words, str(rule.blame), *map(_mark, rule.marks), code(rule.outcome))
                for rule in RULES
            ),
        ),
        "running": table(
            ("running request; the first row that holds", "frozen"),
            ((each.words, _mark(each.frozen)) for each in SIGNS),
        ),
        "retries": table(
            ("attempt; the first row that holds", "is repeated on another replica"),
            ((rule.words, str(rule.repeat)) for rule in RETRIES),
        ),
    }


def _mark(mark: Mark) -> str:
    return "" if mark is Mark.NOTHING else str(mark)
