"""Tables of the law of blame, from its rows."""

from __future__ import annotations

from typing import Final

from pages import code, table

from ext_proc.blame.law import RULES, Effect
from ext_proc.blame.retries import RETRIES

_EJECTION: Final = {
    Effect.GOOD: "a good answer",
    Effect.WELL: "a good answer, without its time",
    Effect.ALIVE: "a sign of life",
    Effect.SILENT: "no sign of life so far",
    Effect.AT_ONCE: "a failure",
    Effect.BY_ORIGIN: "a failure, by origin",
    Effect.NOTHING: "nothing",
}


def tables() -> dict[str, str]:
    """Return the table of verdicts and that of retries."""
    return {
        "verdicts": table(
            ("evidence; the first row that holds", "to blame", "for ejection", "outcome"),
            (
                (rule.words, str(rule.blame), _EJECTION[rule.effect], code(rule.outcome))
                for rule in RULES
            ),
        ),
        "retries": table(
            ("attempt; the first row that holds", "is repeated on another replica"),
            ((rule.words, str(rule.repeat)) for rule in RETRIES),
        ),
    }
