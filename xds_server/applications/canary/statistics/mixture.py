"""Likelihood ratios that are averaged over alternatives, as e-processes. Pure.

An e-process is a non-negative number whose mean is at most 1 while a null hypothesis holds, at
whatever moment one looks (Ville's inequality: it reaches ``1/a`` with a probability of at most
``a``). The average of such numbers, with weights that are fixed beforehand, is one too. So looks
cost nothing, and an alternative that is not the truth costs its weight only.

Numbers are logarithms here: products over a long rollout leave the range of a float.
"""

from __future__ import annotations

from math import exp, inf, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def log_mean(logs: Sequence[float]) -> float:
    """Return the logarithm of the mean of numbers of which the logarithms are given.

    Raises:
        ValueError: There are none.
    """
    if not logs:
        raise ValueError("log_mean: a mean needs at least one number")
    return log_weighted((1.0 / len(logs), each) for each in logs)


def log_weighted(parts: Iterable[tuple[float, float]]) -> float:
    """Return the logarithm of a weighted sum.

    Args:
        parts: Weights above 0, and the logarithms of the numbers.
    """
    terms = [log(weight) + each for weight, each in parts]
    most = max(terms, default=-inf)
    if most in {-inf, inf}:
        return most
    return most + log(sum(exp(each - most) for each in terms))
