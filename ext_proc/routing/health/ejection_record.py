"""What ejection remembers of one replica: its phase, the cause, and decayed counts of results."""

from __future__ import annotations

from enum import StrEnum
from math import exp
from typing import Final

from ext_proc.blame.origins import ANONYMOUS
from ext_proc.routing.latency.estimates import Estimate

NEVER: Final = float("-inf")
ORIGINS: Final = 8
"""Maximum origins kept of a row; more are not needed."""
MIN_ORIGINS: Final = 2
MAX_QUIET_S: Final = 2.0
"""Seconds without a good answer that always suffice."""
QUIET_ANSWERS: Final = 5.0
"""Good answers whose absence shows that a replica gives none; by chance it lasts so long once in
e**5 = 148 gaps between answers. Twice as many where fewer origins failed than failures are needed.
"""
LOG_DELAY_S: Final = 0.1
"""Good answers may be that much later in the log than failures, because each of the proxy's workers
writes its own batches, every 0.05 s."""


class Cause(StrEnum):
    """Cause of an ejection."""

    FAILURES = "failures"
    """Connections fail or break, or retries went elsewhere."""
    DEAD_BACKEND = "dead-backend"
    """It answers, but only with errors, to several origins."""
    RATIO = "ratio"
    """Its failure share is too large."""
    SLOW = "slow"
    """Its first bytes are much later than those of its peers."""
    FROZEN = "frozen"
    """It makes no progress with work in flight."""


class Phase(StrEnum):
    """Phase of a replica's circuit breaker."""

    CLOSED = "closed"
    EJECTED = "ejected"
    HALF_OPEN = "half-open"


CLOSED: Final = Phase.CLOSED
"""A module constant, because each answer reads it and an enum attribute look-up takes 0.1 µs."""


class EjectionRecord:
    """What ejection remembers of one replica.

    It is no dataclass, so that it can be compiled.

    Args:
        variant: The replica's variant.
    """

    __slots__ = (
        "again",
        "alive_at",
        "at",
        "bad",
        "busy_since",
        "cause",
        "closed_at",
        "failed_s",
        "first_s",
        "full_at",
        "good",
        "good_at",
        "good_row",
        "in_doubt",
        "origins",
        "phase",
        "proven",
        "refused",
        "row",
        "row_at",
        "silent_at",
        "sinkhole",
        "span_s",
        "times",
        "until",
        "variant",
    )

    def __init__(self, variant: str) -> None:
        self.variant = variant
        self.phase = Phase.CLOSED
        self.cause: Cause | None = None
        self.until = NEVER
        """End of the ejection, or of the wait for the result of a half-open request; monotonic
        seconds."""
        self.span_s = 0.0
        """Length of the last ejection, in seconds."""
        self.times = 0
        """Ejections since the doubling was last reset."""
        self.closed_at = NEVER
        self.row = 0
        """Consecutive bad results."""
        self.refused = 0
        """Bad results of these that were connection failures, not answers."""
        self.in_doubt = 0
        """Bad results of these that count by origin."""
        self.again = 0
        """Further bad results from the same origins, which are not counted."""
        self.full_at = NEVER
        """When there were enough of them to eject."""
        self.row_at = NEVER
        """When the first of these was noted, monotonic seconds."""
        self.good_at = NEVER
        """When the last good result before these was noted."""
        self.origins: set[int] = set()
        """Origins of these, at most ``ORIGINS``."""
        self.proven = False
        """A replica answered a request of one of these origins well."""
        self.good = 0.0
        self.bad = 0.0
        """Decayed counts of results."""
        self.at = NEVER
        """When the counts were last decayed, monotonic seconds."""
        self.good_row = 0
        self.first_s = Estimate()
        """Time to the first byte of its good answers."""
        self.failed_s = Estimate()
        """Time to the first byte of its failures."""
        self.sinkhole = False
        """It was ejected while it failed faster than its peers answer, so that it looked idle."""
        self.busy_since: float | None = None
        self.alive_at = NEVER
        """When it last made progress, monotonic seconds."""
        self.silent_at = NEVER
        """Since when an attempt that our timeout ended had waited for it."""

    def fail(self, now: float, origin: int | None) -> None:
        """Add a bad result to the row."""
        if not self.row:
            self.row_at, self.good_at = now, self.at
        self.row += 1
        if origin is not None:
            self.in_doubt += 1
            if len(self.origins) < ORIGINS:
                self.origins.add(origin)

    def end_row(self) -> None:
        """Forget the bad results in a row, after a good one."""
        self.row = self.refused = 0
        if self.in_doubt:
            self.in_doubt = self.again = 0
            self.full_at = NEVER
            self.origins.clear()
            self.proven = False

    def of_several(self) -> bool:
        """Return whether no single origin can be the cause of the failures in a row."""
        several = len(self.origins) + self.row - self.in_doubt >= MIN_ORIGINS
        return several or ANONYMOUS in self.origins

    def suffices(self, now: float, least: int, window_s: float) -> bool:
        """Return whether failures in a row that requests may have caused are reason to eject.

        Args:
            now: Monotonic seconds.
            least: Failures needed.
            window_s: Length of the window of the counts, seconds.
        """
        if self.row + self.again < least:
            return False
        if self.full_at == NEVER:
            self.full_at = now
        if not (self.proven or self.of_several()) or now - self.full_at < LOG_DELAY_S:
            return False
        quiet_s = 0.0
        if self.good_at > NEVER and self.good > 0.0:
            usual = self.good * exp(min((self.at - self.good_at) / window_s, 100.0))
            absent = QUIET_ANSWERS if self.row >= least else 2.0 * QUIET_ANSWERS
            quiet_s = min(absent * window_s / max(usual, 1.0), MAX_QUIET_S)
        return now - self.row_at >= quiet_s

    def share(self) -> float | None:
        """Return the failure share, ``None`` without results."""
        total = self.good + self.bad
        return None if total <= 0.0 else self.bad / total

    def count(self, now: float, window_s: float, *, good: int = 0, bad: int = 0) -> None:
        """Add results to the decayed counts."""
        kept = exp((self.at - now) / window_s) if self.at > NEVER else 0.0
        self.good, self.bad, self.at = self.good * kept + good, self.bad * kept + bad, now
