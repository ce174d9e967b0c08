"""What ejection counts over all replicas of a pool: good answers, failures, false alarms. Pure.

Rules:

1. Good answers and failures are counted, so that a row of failures of one replica can be compared
   with what the others gave meanwhile.
2. A false alarm is a row of enough failures that a good answer ended, or a first ejection that
   good answers ended at once. It is held against the clients whose requests failed. At most
   ``MAX_ALARMS`` of one client count; their weight falls to 1/e in ``ALARM_S``.
3. A client is alone if no other one was answered well in the last window. The failures of one that
   is not alone count once in a window. At most ``MAX_CLIENTS`` are remembered, the oldest dropped
   first.
"""

from __future__ import annotations

from math import exp, log
from typing import TYPE_CHECKING, Any, Final

from ext_proc.blame.origins import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable

ALARM_S: Final = 300.0
MAX_ALARMS: Final = 4.0
MAX_CLIENTS: Final = 256
MIN_SHARE: Final = 0.1
"""Least probability of a failure that is assumed for a replica that is well."""
IMPROBABLE: Final = log(1000.0)
"""Logarithm of the odds against failures that makes them improbable."""


class PoolResults:
    """Counts of one pool; see the module's rules."""

    __slots__ = ("_alarms", "_client", "_client_at", "_counted", "_other_at", "answers", "failures")

    def __init__(self) -> None:
        self.answers = 0
        """Good answers so far."""
        self.failures = 0
        """Failures so far that requests may have caused, of a client among others once a window."""
        self._alarms: dict[int, tuple[float, float]] = {}
        """Weight of each client's false alarms, and when it was computed."""
        self._counted: dict[int, float] = {}
        """When a client's failure was last counted."""
        self._client = UNKNOWN
        """The client of the last good answer."""
        self._client_at = self._other_at = float("-inf")
        """When it, and when another one, was last answered well."""

    def answered(self, client: int, now: float) -> None:
        """Note whose request was answered well."""
        if client != self._client:
            self._client, self._other_at = client, self._client_at
        self._client_at = now

    def alone(self, client: int, now: float, window_s: float) -> bool:
        """Return whether no other client was answered well in the last window."""
        other = self._other_at if client == self._client else self._client_at
        return now - other > window_s

    def counts(self, client: int, now: float, window_s: float) -> bool:
        """Count a failure that a client's request may have caused; return whether it counts."""
        if not self.alone(client, now, window_s):
            if now - self._counted.get(client, float("-inf")) <= window_s:
                return False
            _bounded(self._counted, client)
            self._counted[client] = now
        self.failures += 1
        return True

    def alarm(self, clients: Iterable[int], now: float) -> None:
        """Note a false alarm of these clients; ``now`` is in monotonic seconds."""
        for client in clients:
            weight = min(self.alarms(client, now) + 1.0, MAX_ALARMS)
            _bounded(self._alarms, client)
            self._alarms[client] = weight, now

    def alarms(self, client: int, now: float) -> float:
        """Return the weight of a client's false alarms, 0 to ``MAX_ALARMS``."""
        known = self._alarms.get(client)
        return 0.0 if known is None else known[0] * exp(min(known[1] - now, 0.0) / ALARM_S)


def _bounded(known: dict[int, Any], client: int) -> None:
    """Make room for a client, and let it be the youngest."""
    if known.pop(client, None) is None and len(known) >= MAX_CLIENTS:
        del known[next(iter(known))]


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
