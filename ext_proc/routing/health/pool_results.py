"""What ejection counts over all replicas of a pool: good answers, failures, false alarms. Pure.

Rules:

1. Good answers and failures are counted, so that a row of failures of one replica can be compared
   with what the others gave meanwhile.
2. A false alarm is a row of enough failures that a good answer ended, or a first ejection that
   good answers ended at once. At most ``MAX_ALARMS`` count; their weight falls to 1/e in
   ``ALARM_S``.
"""

from __future__ import annotations

from math import exp, log
from typing import Final

ALARM_S: Final = 300.0
MAX_ALARMS: Final = 4.0
MIN_SHARE: Final = 0.1
"""Least probability of a failure that is assumed for a replica that is well."""
IMPROBABLE: Final = log(1000.0)
"""Logarithm of the odds against failures that makes them improbable."""


class PoolResults:
    """Counts of one pool; see the module's rules."""

    __slots__ = ("_alarm_at", "_alarms", "answers", "failures")

    def __init__(self) -> None:
        self.answers = 0
        """Good answers so far."""
        self.failures = 0
        """Failures so far that requests may have caused, once for each origin."""
        self._alarms = 0.0
        self._alarm_at = 0.0

    def alarm(self, now: float) -> None:
        """Note a false alarm; ``now`` is in monotonic seconds."""
        self._alarms, self._alarm_at = min(self.alarms(now) + 1.0, MAX_ALARMS), now

    def alarms(self, now: float) -> float:
        """Return the weight of the false alarms, 0 to ``MAX_ALARMS``."""
        return self._alarms and self._alarms * exp(min(self._alarm_at - now, 0.0) / ALARM_S)


def is_improbable(bad: float, good: float, share: float) -> bool:
    """Return whether a replica that is well gives so many failures less than once in 1000 times.

    The bound is that of Chernoff and Hoeffding on the tail of a binomial distribution.

    Args:
        bad: Failures, above 0.
        good: Good answers.
        share: Probability of a failure; taken as at least ``MIN_SHARE``.
    """
    share, found = max(share, MIN_SHARE), bad / (bad + good)
    if found <= share:
        return False
    odds = bad * log(found / share)
    if good:
        odds += good * log((1.0 - found) / (1.0 - share))
    return odds >= IMPROBABLE
