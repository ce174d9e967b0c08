"""Silence of one replica: whether its failures in a row are improbable if it is well. Pure.

Rules:

1. If the replica is well, each of its failures is as probable as failures are: the share of
   failures at its peers since the row began, at most ``MAX_SHARE``, and its own before, at most
   ``MAX_OWN_SHARE``, and ``MIN_SHARE`` at least.
2. If it is well, it gives one of ``gap`` good answers of the pool. By chance ``m`` in a row are all
   of others once in ``(1 - 1 / gap)**-m`` times; the logarithm of that is the silence. So its clock
   is what its peers answer: it needs no rate, and stands still without requests.
3. The failures of a sick replica go on. So part of the silence must come before the last failure of
   the row, and part of it between the first one and the last one.
4. Each false alarm of the pool makes more silence necessary.
5. Log entries may be late. So what shows a sick replica must hold for ``LOG_DELAY_S``, or the row
   must last ``LONG_ROW_S``, of which entries that are late can then be a quarter.
"""

from __future__ import annotations

from math import log1p
from typing import TYPE_CHECKING, Final

from ext_proc.routing.health.pool_results import is_improbable

if TYPE_CHECKING:
    from ext_proc.routing.health.pool_results import PoolResults

NEVER: Final = float("-inf")
LOG_DELAY_S: Final = 0.075
"""Good answers may be that much later in the log than failures, because each of the proxy's workers
writes its own batches, every 0.05 s."""
LONG_ROW_S: Final = 4.0 * LOG_DELAY_S
MAX_SHARE: Final = 0.8
"""With it, 31 failures in a row are improbable."""
MAX_OWN_SHARE: Final = 0.5
"""With it, 10 failures in a row are improbable."""
ENOUGH: Final = 2.0
"""Silence that shows a sick replica where there were no false alarms; chance gives it once in
e**2 = 7 rows, but only where failures went on for most of the gap."""
MORE: Final = 2.0
"""Further silence for each false alarm."""
UNTIL_LAST: Final = 0.5
"""Part of it that must come before the last failure of the row."""
SINCE_FIRST: Final = 0.25
"""Part of it that must come between the first failure and the last one."""
GAP_WEIGHT: Final = 0.1
"""Weight of a new gap in the mean."""
FIRST_GAP: Final = 2
"""The mean gap that is assumed at first, as a multiple of the number of replicas."""
MIN_GAP: Final = 1.1
"""Shortest mean gap that is assumed."""
MAX_GAP: Final = 4.0
"""Longer gaps count as this multiple of the mean: the replica got no requests."""


class Silence:
    """Silence of one replica; see the module's rules.

    Args:
        replicas: Number of the pool's replicas.
    """

    __slots__ = ("_begun", "_failures", "_gap", "_heard", "_last", "_share", "_since")

    def __init__(self, replicas: int) -> None:
        self._heard = 0
        """Good answers of the pool when this replica gave its last one."""
        self._gap = float(FIRST_GAP * replicas)
        self._begun = self._last = 0
        """Good answers of the pool at the first and the last failure of the row."""
        self._failures = 0
        """Failures of the pool before the row."""
        self._share = 0.0
        """Failure share of the replica before the row."""
        self._since = NEVER
        """Since when the row and the silence suffice."""

    def answered(self, pool: PoolResults, times: int) -> None:
        """Note ``times`` good answers of the replica, and count them in the pool's."""
        answers = pool.answers = pool.answers + times
        gap, longest = (answers - self._heard) / times, MAX_GAP * self._gap
        self._gap += (min(gap, longest) - self._gap) * GAP_WEIGHT
        self._heard = answers

    def resume(self, pool: PoolResults) -> None:
        """Begin anew after an ejection."""
        self._heard = pool.answers

    def begin(self, pool: PoolResults, share: float) -> None:
        """Begin a row of failures, before its first one is counted.

        Args:
            pool: The pool's counts.
            share: The replica's failure share.
        """
        self._begun, self._failures = pool.answers, pool.failures
        self._share = min(share, MAX_OWN_SHARE)
        self._since = NEVER

    def failed(self, pool: PoolResults) -> None:
        """Note a failure of the row."""
        self._last = pool.answers

    def improbable(self, row: int, own: int, pool: PoolResults) -> bool:
        """Return whether so many failures in a row are improbable if the replica is well (rule 1).

        Args:
            row: Failures in a row.
            own: Failures of the replica since the row began that the pool has counted.
            pool: The pool's counts.
        """
        elsewhere = max(pool.failures - self._failures - own, 0)
        share = elsewhere / max(elsewhere + pool.answers - self._begun, 1)
        return is_improbable(row, 0.0, max(min(share, MAX_SHARE), self._share))

    def of_row(self, pool: PoolResults) -> float:
        """Return the silence since the row began."""
        return self._odds(pool.answers - self._begun)

    def _odds(self, others: float) -> float:
        return others * -log1p(-1.0 / max(self._gap, MIN_GAP))

    def shows(self, row: int, row_at: float, now: float, pool: PoolResults) -> bool:
        """Return whether a row of failures and the silence show that the replica is sick.

        Args:
            row: Failures in a row that the pool has counted.
            row_at: When the first of them was noted, monotonic seconds.
            now: Monotonic seconds.
            pool: The pool's counts.
        """
        others = min(
            pool.answers - self._heard,
            (self._last - self._heard) / UNTIL_LAST,
            (self._last - self._begun) / SINCE_FIRST,
        )
        needed = ENOUGH + MORE * pool.alarms(now)
        if self._odds(others) < needed or not self.improbable(row, row, pool):
            self._since = NEVER
            return False
        if self._since == NEVER:
            self._since = now
        return now - self._since >= LOG_DELAY_S or now - row_at >= LONG_ROW_S
