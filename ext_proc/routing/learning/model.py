"""Model: an online linear prediction of cost with its uncertainty.

It is recursive least squares with exponential forgetting. ``spread`` is the inverse of the weighted
sum of ``x x'``, so ``sqrt(x' spread x)`` is the confidence width of LinUCB (Li, Chu, Langford and
Schapire 2010, contextual bandits for news).

Rules:

1. Residuals are bounded, so each sample moves the prediction by a bounded amount, and weights stay
   in ``[-BOUND, BOUND]``.
2. The spread stays bounded: forgetting pauses at the bound, so that what has no samples for long is
   not forgotten without limit.
3. The same samples in the same order give the same model; it uses no randomness.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

BOUND: Final = 10.0
MOST_OFF: Final = 3.0
"""Maximum absolute residual, in units of the expected cost; larger ones are clipped."""
FORGET: Final = 1.0 - 1.0 / 4096.0
PRIOR_SPREAD: Final = 1.0
MOST_SPREAD: Final = 4.0
"""Maximum of the spread's diagonal, as the mean per feature."""


class Linear:
    """A linear model of ``size`` features; it predicts 0 before the first sample."""

    __slots__ = ("samples", "size", "spread", "weights")

    def __init__(self, size: int) -> None:
        self.size = size
        self.weights = [0.0] * size
        self.spread = _prior(size)
        self.samples = 0

    def __repr__(self) -> str:
        return f"<Linear samples={self.samples} size={self.size}>"

    def predict(self, x: Sequence[float]) -> float:
        """Return the expected cost."""
        return sum([weight * each for weight, each in zip(self.weights, x, strict=True)])

    def width(self, x: Sequence[float]) -> float:
        """Return the confidence width of the prediction, in units of the cost's noise."""
        return sqrt(max(0.0, sum([a * b for a, b in zip(self._spread_of(x), x, strict=True)])))

    def learn(self, x: Sequence[float], cost: float) -> None:
        """Take one sample."""
        along = self._spread_of(x)
        scale = FORGET + sum([a * b for a, b in zip(along, x, strict=True)])
        off = min(max(cost - self.predict(x), -MOST_OFF), MOST_OFF)
        self.weights = [
            min(max(weight + off * step / scale, -BOUND), BOUND)
            for weight, step in zip(self.weights, along, strict=True)
        ]
        spread = self.spread
        for row, step in zip(spread, along, strict=True):
            share = step / scale
            for column, other in enumerate(along):
                row[column] -= share * other
        own = [spread[at][at] for at in range(self.size)]
        if min(own) <= 0.0:  # lost to rounding
            self.spread = _prior(self.size)
        elif sum(own) < MOST_SPREAD * self.size * FORGET:
            for row in spread:
                for column in range(self.size):
                    row[column] /= FORGET
        self.samples += 1

    def _spread_of(self, x: Sequence[float]) -> list[float]:
        return [sum([a * b for a, b in zip(row, x, strict=True)]) for row in self.spread]


def _prior(size: int) -> list[list[float]]:
    return [
        [PRIOR_SPREAD if row == column else 0.0 for column in range(size)] for row in range(size)
    ]
