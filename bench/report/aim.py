"""One aim with its verdict. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REPORTED: Final = "reported"
"""What is wanted of a number that is only to be told."""
NOTHING: Final = "-"


@dataclass(frozen=True, slots=True)
class Aim:
    """One aim with its verdict."""

    name: str
    wanted: str
    got: str
    """``-`` = not measured."""
    reached: bool | None
    """``None`` = not measured, or measured and not clear."""
    why: str = ""

    @property
    def verdict(self) -> str:
        """Return the verdict in a word or two."""
        if self.got == NOTHING:
            return "not measured"
        if self.wanted == REPORTED:
            return REPORTED
        if self.reached is None:
            return "undecided"
        return "reached" if self.reached else "missed"


def below(name: str, value: float | None, most: float, unit: str, why: str = "") -> Aim:
    """Return the verdict on a number that is to be at most so much."""
    wanted = f"at most {most:g}{unit}"
    if value is None:
        return Aim(name, wanted, NOTHING, None)
    reached = value <= most
    got = f"{value:.3g}{unit}"
    if not reached:
        got += f", {value / most - 1:.0%} above"
    return Aim(name, wanted, got, reached, "" if reached else why)
