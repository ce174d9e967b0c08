"""What ejection remembers of one replica: its phase, the cause, and decayed counts of results."""

from __future__ import annotations

from enum import StrEnum
from math import exp
from typing import TYPE_CHECKING, Final

from ext_proc.blame.origins import ANONYMOUS
from ext_proc.routing.health.silence import LOG_DELAY_S, NEVER, Silence
from ext_proc.routing.latency.estimates import Estimate

if TYPE_CHECKING:
    from ext_proc.routing.health.pool_results import PoolResults

ORIGINS: Final = 8
"""Maximum origins kept of a row; more are not needed."""
MIN_ORIGINS: Final = 2
MAX_QUIET_S: Final = 2.0
"""Seconds without a good answer that always suffice, where there were no false alarms."""
QUIET_ANSWERS: Final = 5.0
"""Good answers whose absence shows that a replica gives none; by chance it lasts so long once in
e**5 = 148 gaps between answers. Twice as many where fewer origins failed than failures are needed.
"""
ENOUGH: Final = 3
"""Failures that are improbable where failures are as rare as is ever assumed."""
MORE_ANSWERS: Final = 2.0
"""Further ones for each false alarm."""
LEAST_SILENCE: Final = 1.0
"""Least silence since the row began, however long failures go on."""


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
        replicas: Number of the pool's replicas.
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
        "silence",
        "silent_at",
        "sinkhole",
        "span_s",
        "times",
        "until",
        "variant",
    )

    def __init__(self, variant: str, replicas: int = 1) -> None:
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
        self.silence = Silence(replicas)
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

    def fail(self, now: float, origin: int | None, pool: PoolResults) -> None:
        """Add a bad result to the row.

        Args:
            now: Monotonic seconds.
            origin: The origin whose request may have caused it; ``None`` = no request can have.
            pool: The pool's counts, without this result.
        """
        if not self.row:
            self.row_at, self.good_at = now, self.at
            self.silence.begin(pool, self.share() or 0.0)
        self.silence.failed(pool)
        self.row += 1
        if origin is not None:
            pool.failures += 1
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

    def is_sudden(self, now: float, least: int, pool: PoolResults) -> bool:
        """Return whether failures in a row show without delay that a replica is sick.

        Args:
            now: Monotonic seconds.
            least: Failures needed, each of another origin.
            pool: The pool's counts.
        """
        if self.in_doubt < least or not (self.proven or self.of_several()):
            return False
        return self.silence.shows(self.in_doubt, self.row_at, now, pool)

    def suffices(self, now: float, least: int, window_s: float, pool: PoolResults) -> bool:
        """Return whether failures in a row that requests may have caused went on for long enough.

        Args:
            now: Monotonic seconds.
            least: Failures needed.
            window_s: Length of the window of the counts, seconds.
            pool: The pool's counts.
        """
        failed = self.row + self.again
        if failed < least or not self.silence.improbable(max(failed, ENOUGH), self.in_doubt, pool):
            return False
        if self.full_at == NEVER:
            self.full_at = now
        if not (self.proven or self.of_several()) or now - self.full_at < LOG_DELAY_S:
            return False
        quiet_s = 0.0
        if self.good_at > NEVER and self.good > 0.0:
            if not self.proven and self.silence.of_row(pool) < LEAST_SILENCE:
                return False
            usual = self.good * exp(min((self.at - self.good_at) / window_s, 100.0))
            alarms = pool.alarms(now)
            absent = QUIET_ANSWERS if self.row >= least else 2.0 * QUIET_ANSWERS
            absent += MORE_ANSWERS * alarms
            quiet_s = min(absent * window_s / max(usual, 1.0), MAX_QUIET_S * (1.0 + alarms))
        return now - self.row_at >= quiet_s

    def share(self) -> float | None:
        """Return the failure share, ``None`` without results."""
        total = self.good + self.bad
        return None if total <= 0.0 else self.bad / total

    def count(self, now: float, window_s: float, *, good: int = 0, bad: int = 0) -> None:
        """Add results to the decayed counts."""
        kept = exp((self.at - now) / window_s) if self.at > NEVER else 0.0
        self.good, self.bad, self.at = self.good * kept + good, self.bad * kept + bad, now
