"""Histograms with logarithmic buckets, which pickers count and the control server adds up. Pure.

Rules:

1. Bucket ``n`` counts seconds between ``LEAST_S * GROWTH**(n - 1)`` and ``LEAST_S * GROWTH**n``;
   bucket 0 what is below ``LEAST_S``, the last one what is above the others (about 3,400 s).
2. A histogram is a mapping from a bucket's number to its count, so the sum of two histograms is
   that of their counts, in any order.
3. A quantile is the geometric middle of its bucket: at most ``ERROR`` above or below the true
   value, for values between ``LEAST_S`` and the last bucket.
"""

from __future__ import annotations

from math import ceil, log, sqrt
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST_S: Final = 0.001
GROWTH: Final = 1.1
BUCKETS: Final = 160
"""Number of buckets."""
ERROR: Final = sqrt(GROWTH) - 1.0
"""Largest relative error of a quantile: 4.9 %."""

_PER_E: Final = 1.0 / log(GROWTH)
_LAST: Final = BUCKETS - 1


def bucket_of(seconds: float) -> int:
    """Return the number of the bucket that counts a duration."""
    if seconds < LEAST_S:
        return 0
    number = int(log(seconds / LEAST_S) * _PER_E) + 1
    return number if number < _LAST else _LAST  # noqa: FURB136 - half the time


def quantile(counts: Mapping[int, int], share: float) -> float | None:
    """Return a quantile in seconds; ``None`` = nothing was counted.

    Args:
        counts: The counts by bucket.
        share: The quantile, 0..1: 0.5 is the median.
    """
    total = sum(counts.values())
    if total <= 0:
        return None
    wanted, seen = max(1, ceil(share * total)), 0
    for number in sorted(counts):
        seen += counts[number]
        if seen >= wanted:
            return middle(number)
    return None


def middle(number: int) -> float:
    """Return the geometric middle of a bucket, in seconds."""
    return LEAST_S if number <= 0 else float(LEAST_S * GROWTH ** (min(number, _LAST) - 0.5))
