"""Delays between attempts to connect. Pure: randomness is an argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_S: Final = 0.2
LONGEST_S: Final = 2.0
_GROWTH: Final = 2.0


class Backoff:
    """Exponential delays with jitter, so that many clients do not come back at once.

    Args:
        rng: Returns a number in [0, 1).
    """

    def __init__(self, rng: Callable[[], float]) -> None:
        self._rng = rng
        self._next_s = FIRST_S

    def delay_s(self) -> float:
        """Return the next delay in seconds: half of it fixed, half of it random."""
        bound = self._next_s
        self._next_s = min(LONGEST_S, bound * _GROWTH)
        return bound * (0.5 + 0.5 * self._rng())

    def reset(self) -> None:
        """Start over: an attempt succeeded."""
        self._next_s = FIRST_S
