"""Fine histograms of positive numbers, such as seconds, by logarithmic buckets. Pure.

Rules:

1. Bucket ``n`` counts values between ``LEAST * 1.1 ** ((n - 1) / PER_TENTH)`` and
   ``LEAST * 1.1 ** (n / PER_TENTH)``; bucket 0 what is below, the last one what is above (about
   an hour). So four buckets are ten per cent, and dividing all values by ``1.1`` is a shift by
   four buckets without loss.
2. Histograms are added by adding their counts, in any order.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST: Final = 0.0005
PER_TENTH: Final = 4
"""Buckets in which values grow by a tenth."""
BUCKETS: Final = 664
"""Number of buckets."""

_PER_E: Final = PER_TENTH / log(1.1)
_LAST: Final = BUCKETS - 1


def fine_bucket(value: float) -> int:
    """Return the number of the bucket that counts a value."""
    if value < LEAST:
        return 0
    bucket = int(log(value / LEAST) * _PER_E) + 1
    return bucket if bucket < _LAST else _LAST  # noqa: FURB136 - a third faster than min


def shift_of(margin: float) -> int:
    """Return how many buckets a factor of ``1 + margin`` is, rounded; at least 0."""
    return max(0, round(log(1.0 + margin) * _PER_E))


def threshold(counts: Mapping[int, float], share: float) -> int | None:
    """Return the bucket that a quantile is in; ``None`` = nothing was counted.

    Args:
        counts: Counts by bucket; they may have been weighted.
        share: The quantile, 0..1.
    """
    wanted, seen, found = share * sum(counts.values()), 0.0, None
    for found in sorted(counts):
        seen += counts[found]
        if seen >= wanted:
            break
    return found


def above(counts: Mapping[int, int], bucket: int) -> int:
    """Return how many values are in higher buckets."""
    return sum(count for number, count in counts.items() if number > bucket)
