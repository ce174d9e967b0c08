"""Evidence about caches: observed over predicted cached tokens; counts in, e-values out. Pure.

Rules:

1. The picker predicts how many tokens of a prompt a replica has cached. The first request of a
   session for which it predicts some *falls short* where the engine tells fewer than the
   prediction divided by ``1 + margin``. How many tokens are predicted does not matter, so a canary
   that is cold, and gets few, is not held to be worse. Hits alone would say so: identical engines
   had 19 to 26 per cent as canary and 52 to 64 as stable.
2. In a minute, the canary's part of those that fall short has Fisher's noncentral hypergeometric
   distribution. ``log_worse`` is evidence against odds of at most ``ODDS`` times stable's,
   ``log_not_worse`` against those odds or more and, at once, a share of ``FLOOR`` or more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from xds_server.applications.canary.statistics.mixture import log_mean
from xds_server.applications.canary.statistics.noncentral import log_likelihood_ratio
from xds_server.applications.canary.statistics.rates import log_below

if TYPE_CHECKING:
    from collections.abc import Sequence

ODDS: Final = 1.5
"""Odds to fall short, in multiples of stable's, that are the margin."""
WORSE: Final = (1.25, 1.6, 2.5, 6.0, 20.0)
"""Alternatives of ``log_worse``, in multiples of ``ODDS``."""
BETTER: Final = (0.85, 0.7, 0.5, 0.3)
FLOOR: Final = 0.05
"""Share of the canary's predictions that may fall short, whatever stable's do."""


class CacheCell(NamedTuple):
    """First requests with a prediction that ended in one minute."""

    canary: int
    canary_short: int
    """Those of them that fell short."""
    stable: int
    stable_short: int


class CacheEvidence:
    """The evidence of all minutes; see the module's rules."""

    def __init__(self) -> None:
        self._worse = [0.0] * len(WORSE)
        self._better = [0.0] * len(BETTER)
        self._canary = 0
        self._short = 0

    def fold(self, cell: CacheCell) -> None:
        """Take a minute that is over."""
        self._canary += cell.canary
        self._short += cell.canary_short
        sizes = (cell.canary, cell.stable, cell.canary_short + cell.stable_short)
        null = log_likelihood_ratio(*sizes, cell.canary_short, ODDS)
        for grid, logs in ((WORSE, self._worse), (BETTER, self._better)):
            for number, multiple in enumerate(grid):
                odds = multiple * ODDS
                logs[number] += log_likelihood_ratio(*sizes, cell.canary_short, odds) - null

    @property
    def log_worse(self) -> float:
        """The log e-value against "predictions fall short little more often than stable's"."""
        return log_mean(self._worse)

    @property
    def log_not_worse(self) -> float:
        """The log e-value against "much more often, and often"."""
        floor = log_below(self._canary, self._short, FLOOR)
        return log_mean([log_mean(self._better), floor])

    def dump(self) -> dict[str, object]:
        """Return the state as JSON values."""
        return {
            "worse": self._worse,
            "better": self._better,
            "canary": self._canary,
            "short": self._short,
        }

    def restore(
        self, worse: Sequence[float], better: Sequence[float], canary: int, short: int
    ) -> None:
        """Take a state that ``dump`` returned."""
        self._worse, self._better = list(worse), list(better)
        self._canary, self._short = canary, short
