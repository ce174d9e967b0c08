"""Evidence about rates of failing sessions: counts in, e-values out. Pure.

Rules:

1. A session counts once, by its first failure. Let canary sessions fail ``r`` times as often as
   stable ones. Given that a session failed, it is the canary's with probability
   ``r a / (r a + b)``, where ``a`` and ``b`` are the shares of all sessions that count as the
   canary's and as stable's at that moment (``FailureCell``). How often sessions fail does not
   matter, so it may drift (Lindon and Malek 2022, "Anytime-valid inference for multinomial count
   data").
2. ``log_worse`` is evidence against "at most ``margin`` times as often", ``log_not_worse`` against
   "``margin`` times as often or more". Each is a mean of likelihood ratios over ``WORSE`` and
   ``BETTER``. The null hypotheses are whole ranges: the ratio's mean is largest at their end.
3. Where almost nothing fails, a ratio takes for ever. ``log_below`` is evidence against "canary
   sessions fail with probability ``floor`` or more", whatever stable's do.
4. ``interval`` is the set of ratios that neither side has disproved.
"""

from __future__ import annotations

from math import exp, inf, log
from typing import TYPE_CHECKING, Final, NamedTuple

from xds_server.applications.canary.statistics.mixture import log_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

WORSE: Final = (1.25, 1.6, 2.5, 5.0, 20.0, 100.0)
"""Alternatives of ``log_worse``, in multiples of the margin."""
BETTER: Final = (0.85, 0.7, 0.55, 0.35)
"""Alternatives of ``log_not_worse``, in multiples of the margin; a margin of 1.5 has 0.67 for "as
good as stable"."""
BELOW: Final = (0.0, 0.1, 0.25, 0.45, 0.7)
"""Alternatives of ``log_below``, in multiples of the floor."""
WIDEST: Final = 1_000.0
"""Bound of an interval's ends: 1/1,000 to 1,000 times."""
_HALVINGS: Final = 30


class FailureCell(NamedTuple):
    """First failures of sessions that had the same chances to be the canary's and stable's."""

    canary_share: float
    """The canary's probability when these sessions began, above 0 and below 1."""
    stable_share: float
    """Stable's probability when they failed: sessions that a step moved since do not count."""
    canary: int
    """Sessions of the canary that failed."""
    stable: int
    """Sessions of stable that failed."""


def log_worse(cells: Iterable[FailureCell], margin: float) -> float:
    """Return the log e-value against "the canary fails at most ``margin`` times as often"."""
    return _log_mixture(tuple(cells), margin, WORSE)


def log_not_worse(cells: Iterable[FailureCell], margin: float) -> float:
    """Return the log e-value against "the canary fails ``margin`` times as often or more"."""
    return _log_mixture(tuple(cells), margin, BETTER)


def log_below(sessions: int, failed: int, floor: float) -> float:
    """Return the log e-value against "canary sessions fail with probability ``floor`` or more".

    Args:
        sessions: Canary sessions whose outcome is known.
        failed: Those of them that failed.
        floor: Above 0 and below 1.
    """
    logs = []
    for multiple in BELOW:
        rate = multiple * floor
        part = (sessions - failed) * log((1.0 - rate) / (1.0 - floor))
        if failed:
            part += failed * log(multiple) if multiple else -inf
        logs.append(part)
    return log_mean(logs)


def interval(cells: Iterable[FailureCell], threshold: float) -> tuple[float, float]:
    """Return the least and the greatest ratio that the failures do not disprove.

    Args:
        cells: The failures.
        threshold: E-value at which a ratio is disproved; 1 / (1 - confidence) of each end.
    """
    held = tuple(cells)
    wanted = log(threshold)
    low = _edge(lambda ratio: log_worse(held, ratio) >= wanted)
    high = 1.0 / _edge(lambda ratio: log_not_worse(held, 1.0 / ratio) >= wanted)
    return low, high


def _edge(disproved: Callable[[float], bool]) -> float:
    """Return the end of the disproved ratios, which reach from nothing up to it."""
    low, high = -log(WIDEST), log(WIDEST)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if disproved(exp(middle)) else (low, middle)
    return exp(low)


def _log_mixture(cells: Sequence[FailureCell], margin: float, multiples: Sequence[float]) -> float:
    return log_mean([_log_ratio(cells, margin, margin * each) for each in multiples])


def _log_ratio(cells: Iterable[FailureCell], null: float, other: float) -> float:
    """Return the log likelihood ratio of two ratios of failure rates."""
    found = 0.0
    for a, b, canary, stable in cells:
        log_scale = log((null * a + b) / (other * a + b))
        found += canary * (log(other / null) + log_scale) + stable * log_scale
    return found
