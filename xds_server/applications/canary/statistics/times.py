"""Evidence about times: counts by cell in, e-values out. Pure.

Rules:

1. A cell is what ended in one minute in one stratum: requests of one form with about as many
   uncached tokens. Only the first request of a session counts, so times are as independent as
   sessions are. Load is no stratum: a slower variant makes its own replicas busier.
2. In a cell, the canary's and stable's times above a threshold are counted. The threshold is
   stable's p50, p90 or p99 in *earlier* minutes of that stratum, so it does not depend on what is
   compared. Given how many are above it in all, the canary's part has Fisher's noncentral
   hypergeometric distribution (``noncentral.py``), however the load of that minute was.
3. The canary's times are divided by ``1 + margin``. Odds of 1 are then a canary that is slower by
   just the margin: the product of likelihood ratios over all cells, averaged over ``WORSE``, is
   evidence that it is slower by more than the margin, and over ``BETTER`` that it is by less.
4. Stable's times weigh less by ``FADE`` with each minute, and a threshold needs ``LEAST_TIMES`` of
   them. At most ``MAX_STRATA`` strata are compared; beyond that, times are left out.

Source: Lindon, Sanden and Shirikian, KDD 2022, "Rapid regression detection in software deployments
through sequential testing", for exceedances of quantiles.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate_common.fine_histogram import above, shift_of, threshold
from xds_server.applications.canary.statistics.mixture import log_mean
from xds_server.applications.canary.statistics.noncentral import log_likelihood_ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Histogram = Mapping[int, int]
    """Counts by bucket of ``tidegate_common.fine_histogram``."""

QUANTILES: Final = (0.5, 0.9, 0.99)
LEAST_TIMES: Final[Mapping[float, int]] = MappingProxyType({0.5: 20, 0.9: 50, 0.99: 200})
"""Stable's times that a threshold needs, by quantile."""
WORSE: Final = (1.25, 1.6, 2.2, 4.0, 12.0)
BETTER: Final = (0.85, 0.7, 0.55, 0.35)
FADE: Final = 0.97
_FORGOTTEN: Final = 0.01
"""Weight below which a bucket of earlier times is dropped."""
MAX_STRATA: Final = 128


class TimeCell(NamedTuple):
    """Times of first requests that ended in one minute, in one stratum."""

    canary: Histogram
    stable: Histogram


class TimeEvidence:
    """The evidence of one kind of time, for all quantiles; see the module's rules.

    Args:
        margin: How much slower the canary may be: 0.1 is ten per cent.
    """

    def __init__(self, margin: float) -> None:
        self._shift = shift_of(margin)
        self._earlier: dict[str, dict[int, float]] = {}
        self._worse = {each: [0.0] * len(WORSE) for each in QUANTILES}
        self._better = {each: [0.0] * len(BETTER) for each in QUANTILES}

    def fold(self, cells: Mapping[str, TimeCell]) -> None:
        """Take the cells of a minute that is over, by stratum."""
        for stratum, cell in sorted(cells.items()):
            earlier = self._earlier.get(stratum, {})
            for share in QUANTILES if cell.canary and cell.stable else ():
                self._compare(share, cell, earlier)
        for stratum in sorted(self._earlier.keys() | cells.keys()):
            self._remember(stratum, cells[stratum].stable if stratum in cells else {})

    def log_worse(self, share: float) -> float:
        """Return the log e-value against "slower by at most the margin" at a quantile."""
        return log_mean(self._worse[share])

    def log_not_worse(self, share: float) -> float:
        """Return the log e-value against "slower by the margin or more" at a quantile."""
        return log_mean(self._better[share])

    def dump(self) -> dict[str, object]:
        """Return the state as JSON values."""
        return {
            "earlier": {k: sorted(v.items()) for k, v in self._earlier.items()},
            "worse": [self._worse[each] for each in QUANTILES],
            "better": [self._better[each] for each in QUANTILES],
        }

    def restore(
        self,
        earlier: Mapping[str, Sequence[tuple[int, float]]],
        worse: Sequence[Sequence[float]],
        better: Sequence[Sequence[float]],
    ) -> None:
        """Take a state that ``dump`` returned."""
        self._earlier = {stratum: dict(pairs) for stratum, pairs in earlier.items()}
        self._worse = {share: list(each) for share, each in zip(QUANTILES, worse, strict=True)}
        self._better = {share: list(each) for share, each in zip(QUANTILES, better, strict=True)}

    def _compare(self, share: float, cell: TimeCell, earlier: Mapping[int, float]) -> None:
        if sum(earlier.values()) < LEAST_TIMES[share]:
            return
        limit = threshold(earlier, share)
        if limit is None:
            return
        canary, stable = sum(cell.canary.values()), sum(cell.stable.values())
        slow = above(cell.canary, limit + self._shift)
        both = slow + above(cell.stable, limit)
        for grid, logs in ((WORSE, self._worse[share]), (BETTER, self._better[share])):
            for number, odds in enumerate(grid):
                logs[number] += log_likelihood_ratio(canary, stable, both, slow, odds)

    def _remember(self, stratum: str, stable: Histogram) -> None:
        kept = {
            bucket: left
            for bucket, weight in self._earlier.get(stratum, {}).items()
            if (left := weight * FADE) >= _FORGOTTEN
        }
        for bucket, count in stable.items():
            kept[bucket] = kept.get(bucket, 0.0) + count
        if kept and (stratum in self._earlier or len(self._earlier) < MAX_STRATA):
            self._earlier[stratum] = kept
        elif not kept:
            self._earlier.pop(stratum, None)
