"""What ejection remembers of one replica: its phase, the cause, and decayed counts of results."""

from __future__ import annotations

from enum import StrEnum
from math import exp
from typing import Final

from ext_proc.routing.latency.estimates import Estimate

NEVER: Final = float("-inf")


class Cause(StrEnum):
    """Cause of an ejection."""

    FAILURES = "failures"
    """Connections fail or break, or retries went elsewhere."""
    DEAD_BACKEND = "dead-backend"
    """It answers, but only with errors."""
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
        "alive_at",
        "at",
        "bad",
        "busy_since",
        "cause",
        "closed_at",
        "failed_s",
        "first_s",
        "good",
        "good_row",
        "phase",
        "refused",
        "row",
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

    def share(self) -> float | None:
        """Return the failure share, ``None`` without results."""
        total = self.good + self.bad
        return None if total <= 0.0 else self.bad / total

    def count(self, now: float, window_s: float, *, good: int = 0, bad: int = 0) -> None:
        """Add results to the decayed counts."""
        kept = exp((self.at - now) / window_s) if self.at > NEVER else 0.0
        self.good, self.bad, self.at = self.good * kept + good, self.bad * kept + bad, now
