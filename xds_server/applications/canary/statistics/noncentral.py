"""Fisher's noncentral hypergeometric distribution, as far as likelihood ratios need it. Pure.

``canary`` and ``stable`` sessions gave ``exceeding`` times above a threshold in all. If the odds of
the canary's to exceed it are ``odds`` times those of stable's, the number of the canary's among
them has this distribution, whatever the common rate is.
"""

from __future__ import annotations

from functools import lru_cache
from math import lgamma, log, sqrt
from typing import Final

_SMALLEST: Final = 1e-17
"""Terms below this share of the largest one are left out."""
MAX_MEMO: Final = 16_384


def log_likelihood_ratio(
    canary: int, stable: int, exceeding: int, exceeding_canary: int, odds: float
) -> float:
    """Return the log likelihood ratio of ``odds`` to odds of 1.

    Args:
        canary: Times of the canary.
        stable: Times of stable.
        exceeding: Those of both that are above the threshold.
        exceeding_canary: Those of them that are the canary's.
        odds: Above 0.
    """
    return exceeding_canary * log(odds) - log_tilt(canary, stable, exceeding, odds)


@lru_cache(maxsize=MAX_MEMO)
def log_tilt(canary: int, stable: int, exceeding: int, odds: float) -> float:
    """Return the logarithm of the mean of ``odds ** X`` for hypergeometric ``X``.

    The sum runs from its largest term outwards, so it takes time in proportion to the standard
    deviation of ``X``, not to its range.
    """
    least, most = max(0, exceeding - stable), min(canary, exceeding)
    if least == most:
        return least * log(odds)
    mode = min(max(_mode(canary, stable, exceeding, odds), least), most)
    total = 1.0
    term = 1.0
    for x in range(mode, most):
        term *= odds * (canary - x) * (exceeding - x) / ((x + 1) * (stable - exceeding + x + 1))
        total += term
        if term < _SMALLEST:
            break
    term = 1.0
    for x in range(mode, least, -1):
        up = odds * (canary - x + 1) * (exceeding - x + 1)
        term *= x * (stable - exceeding + x) / up
        total += term
        if term < _SMALLEST:
            break
    at_mode = (
        _log_choose(canary, mode)
        + _log_choose(stable, exceeding - mode)
        - _log_choose(canary + stable, exceeding)
    )
    return at_mode + mode * log(odds) + log(total)


def _mode(canary: int, stable: int, exceeding: int, odds: float) -> int:
    """Return the most probable number.

    Source: Fog 2008, "Calculation methods for Wallenius' noncentral hypergeometric distribution".
    """
    a = odds - 1.0
    b = exceeding - stable - (canary + exceeding + 2) * odds
    c = (canary + 1) * (exceeding + 1) * odds
    return int(-2.0 * c / (b - sqrt(max(0.0, b * b - 4.0 * a * c))))


def _log_choose(of: int, some: int) -> float:
    return lgamma(of + 1) - lgamma(some + 1) - lgamma(of - some + 1)
