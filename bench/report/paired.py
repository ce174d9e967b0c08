"""Paired comparison of two contenders by seed, with an interval. Pure functions.

Both contenders get the same requests at the same times for a seed, so differences are theirs. The
interval is Student's 95 % interval of the mean over seeds: of the logarithm of the ratio for times,
of the difference for fractions. With two or three seeds it is wide; a bootstrap of so few values
would be too narrow.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_T975: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t, 97.5 %, for 1 to 30 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Comparison of two contenders."""

    mean: float
    low: float | None
    """Lower bound; ``None``, like ``high``, for one seed, which has no interval."""
    high: float | None
    seeds: int

    def below(self, bound: float) -> bool | None:
        """Return whether the value is below a bound; ``None`` if the interval contains it."""
        if self.low is None or self.high is None or self.low < bound <= self.high:
            return None
        return self.high < bound


def ratio(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> Compared | None:
    """Return ours divided by theirs, the geometric mean over common seeds.

    ``None`` without common seeds or if a value is not above 0.
    """
    pairs = _pairs(ours, theirs)
    if not pairs or any(one <= 0 or other <= 0 for one, other in pairs):
        return None
    mean, half = _interval([log(one / other) for one, other in pairs])
    if half is None:
        return Compared(exp(mean), None, None, len(pairs))
    return Compared(exp(mean), exp(mean - half), exp(mean + half), len(pairs))


def difference(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> Compared | None:
    """Return ours minus theirs, the mean over common seeds; ``None`` without any."""
    pairs = _pairs(ours, theirs)
    if not pairs:
        return None
    mean, half = _interval([one - other for one, other in pairs])
    if half is None:
        return Compared(mean, None, None, len(pairs))
    return Compared(mean, mean - half, mean + half, len(pairs))


def by_seed(rows: Sequence[Mapping[str, Any]], *path: str, seed: str = "seed") -> dict[int, float]:
    """Return a number of each run by seed; runs that lack it are omitted.

    Args:
        rows: Runs of one contender.
        path: Keys that lead to the number.
        seed: Column that identifies paired runs.
    """
    found = {}
    for row in rows:
        value: Any = row
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            found[row[seed]] = float(value)
    return found


def _pairs(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> list[tuple[float, float]]:
    return [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]


def _interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and half the width of its interval."""
    mean = statistics.fmean(values)
    freedom = len(values) - 1
    if freedom < 1:
        return mean, None
    t = _T975[min(freedom, len(_T975)) - 1]
    return mean, t * statistics.stdev(values) / sqrt(len(values))
