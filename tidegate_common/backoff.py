"""Delays between connection attempts. Pure: the source of randomness is an argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_S: Final = 0.2
LONGEST_S: Final = 2.0
_GROWTH: Final = 2.0


class Backoff:
    """Exponential delays with jitter, so that many clients do not reconnect at once.

    The bound starts at ``FIRST_S`` and doubles with each attempt up to ``longest_s`` (seconds).

    Args:
        rng: Returns a number in [0, 1).
        longest_s: The last bound.
    """

    def __init__(self, rng: Callable[[], float], longest_s: float = LONGEST_S) -> None:
        self._rng = rng
        self._longest_s = longest_s
        self._next_s = FIRST_S

    def delay_s(self) -> float:
        """Return the next delay in seconds: one half of the bound is fixed, the other random."""
        bound = self._next_s
        self._next_s = min(self._longest_s, bound * _GROWTH)
        return bound * (0.5 + 0.5 * self._rng())

    def reset(self) -> None:
        """Start again at ``FIRST_S``; called when an attempt succeeds."""
        self._next_s = FIRST_S
