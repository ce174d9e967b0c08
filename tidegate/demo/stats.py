"""Statistics of the demo's verdicts. Pure functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONFIDENCE: Final = 0.9999
"""Two-sided confidence of an interval: a true share is outside in 1 of 10,000 runs."""
_HALVINGS: Final = 60
"""Bisection steps; 2**-60 is below the precision of a float near 1."""


class Interval(NamedTuple):
    """A closed interval of fractions."""

    low: float
    high: float

    def __contains__(self, share: object) -> bool:
        """Return whether the fraction is in the interval."""
        return isinstance(share, (int, float)) and self.low <= share <= self.high


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the nearest-rank percentile, ``None`` without values.

    Raises:
        ValueError: ``percent`` is not in (0, 100].
    """
    if not 0 < percent <= 100:  # noqa: PLR2004 - percent
        raise ValueError(f"a percentile is above 0 and at most 100, not {percent}")
    if not values:
        return None
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def binomial_interval(hits: int, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the exact confidence interval of a fraction after ``hits`` of ``trials``.

    Source: Clopper and Pearson (Biometrika 26, 1934). The interval contains the true fraction
    with at least ``confidence``, for any fraction and any number of trials.

    Raises:
        ValueError: Not ``0 <= hits <= trials``, no trials, or a confidence outside (0, 1).
    """
    if not 0 <= hits <= trials or trials == 0:
        raise ValueError(f"{hits} of {trials} is not a fraction")
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence is between 0 and 1, not {confidence}")
    tail = (1 - confidence) / 2
    low = 0.0
    if hits > 0:
        low = _bisect(lambda share: 1 - _at_most(hits - 1, trials, share) < tail)
    high = 1.0
    if hits < trials:
        high = _bisect(lambda share: _at_most(hits, trials, share) > tail)
    return Interval(low, high)


def _bisect(is_below: Callable[[float], bool]) -> float:
    """Return the point in [0, 1] at which ``is_below`` changes from true to false."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if is_below(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _at_most(hits: int, trials: int, share: float) -> float:
    """Return the probability of at most ``hits`` of ``trials``; safe against underflow."""
    if share <= 0:
        return 1.0
    if share >= 1:
        return 1.0 if hits >= trials else 0.0
    log_share, log_rest = math.log(share), math.log1p(-share)
    log_ways = math.lgamma(trials + 1)
    return min(
        1.0,
        math.fsum(
            math.exp(
                log_ways
                - math.lgamma(count + 1)
                - math.lgamma(trials - count + 1)
                + count * log_share
                + (trials - count) * log_rest
            )
            for count in range(hits + 1)
        ),
    )
