"""A target of the benchmark and its verdict. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REPORTED: Final = "reported"
"""Target of a number that is reported without a bound."""
NOTHING: Final = "-"


@dataclass(frozen=True, slots=True)
class Aim:
    """A target and its verdict."""

    name: str
    wanted: str
    got: str
    """Measured value; ``-`` if not measured."""
    reached: bool | None
    """Whether the target is reached; ``None`` if not measured or undecided."""
    why: str = ""

    @property
    def verdict(self) -> str:
        """Return the verdict as text."""
        if self.got == NOTHING:
            return "not measured"
        if self.wanted == REPORTED:
            return REPORTED
        if self.reached is None:
            return "undecided"
        return "reached" if self.reached else "missed"


def below(name: str, value: float | None, most: float, unit: str, why: str = "") -> Aim:
    """Return the verdict of a number with the upper bound ``most``."""
    wanted = f"at most {most:g}{unit}"
    if value is None:
        return Aim(name, wanted, NOTHING, None)
    reached = value <= most
    got = f"{value:.3g}{unit}"
    if not reached:
        got += f", {value / most - 1:.0%} above"
    return Aim(name, wanted, got, reached, "" if reached else why)
