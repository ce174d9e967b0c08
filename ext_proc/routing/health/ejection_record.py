"""What ejection remembers of one replica: its phase, the cause, and decayed counts of results."""

from __future__ import annotations

from enum import StrEnum
from math import exp
from typing import TYPE_CHECKING, Final

from ext_proc.blame.origins import ANONYMOUS
from ext_proc.routing.health.experiment import MAX_CLIENTS, OTHERS, Experiment
from ext_proc.routing.health.pool_results import is_improbable
from ext_proc.routing.latency.model import Estimate

if TYPE_CHECKING:
    from ext_proc.routing.health.pool_results import PoolResults

NEVER: Final = float("-inf")
ORIGINS: Final = 8
"""Maximum origins kept of a row; more are not needed."""
MIN_ORIGINS: Final = 2
ENOUGH: Final = 3
"""Failures that are improbable where failures are as rare as is ever assumed."""
MAX_SHARE: Final = 0.8
"""Most that is assumed of the peers' failure share; with it 31 failures in a row are improbable."""
MAX_OWN_SHARE: Final = 0.5
"""Most that is assumed of the replica's own failure share; with it 10 in a row are improbable."""


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
        "accused_by",
        "again",
        "alive_at",
        "at",
        "bad",
        "busy_since",
        "cause",
        "closed_at",
        "counted",
        "experiments",
        "failed_at",
        "failed_s",
        "first_s",
        "good",
        "good_at",
        "good_row",
        "good_to",
        "in_doubt",
        "mute",
        "origins",
        "phase",
        "refused",
        "row",
        "row_answers",
        "row_at",
        "row_failures",
        "row_share",
        "silent_at",
        "silent_to",
        "sinkhole",
        "span_s",
        "times",
        "until",
        "variant",
    )

    def __init__(self, variant: str) -> None:  # noqa: PLR0915 - one statement for each field
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
        self.counted = 0
        """Bad results in a row that the pool counts."""
        self.good_to: dict[int, float] = {}
        """Clients whose last result was good, and when that was; at most ``MAX_CLIENTS``, the one
        that came first is dropped first."""
        self.accused_by: tuple[int, ...] = ()
        """Clients whose failures ejected it last."""
        self.row_at = NEVER
        """When the first of these was noted, monotonic seconds."""
        self.failed_at = NEVER
        """When the last one was noted."""
        self.row_answers = self.row_failures = 0
        """The pool's good answers and failures before the row."""
        self.row_share = 0.0
        """Its failure share before the row."""
        self.good_at = NEVER
        """When the last good result before these was noted."""
        self.origins: set[int] = set()
        """Origins of these, at most ``ORIGINS``."""
        self.experiments: dict[int, Experiment] = {}
        """What each client's requests show, at most ``MAX_CLIENTS`` and ``OTHERS``."""
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
        self.silent_to: dict[int, int] = {}
        """Such attempts since then by client, of at most ``MAX_CLIENTS``."""
        self.mute = False
        """It did not answer our last probe."""

    def fail(
        self, now: float, window_s: float, origin: int | None, client: int, pool: PoolResults
    ) -> None:
        """Add a bad result to the row.

        Args:
            now: Monotonic seconds.
            window_s: The pool's ``outlier.interval``, seconds.
            origin: The origin whose request may have caused it; ``None`` = no request can have.
            client: The client that sent the request.
            pool: The pool's counts, without this result.
        """
        if not self.row:
            self.row_at, self.good_at = now, self.at
            self.row_answers, self.row_failures = pool.answers, pool.failures
            self.row_share = min(self.share() or 0.0, MAX_OWN_SHARE)
            after_s = now - self.failed_at
            for one, known in list(self.experiments.items()):
                known.begin(after_s, alone=pool.alone(one, now, window_s))
                if not known.row and not known.failures:
                    del self.experiments[one]
        self.row += 1
        self.failed_at = now
        if origin is not None:
            self.in_doubt += 1
            self.experiment_of(client).bad += 1
            self.good_to.pop(client, None)
            if len(self.origins) < ORIGINS:
                self.origins.add(origin)

    def experiment_of(self, client: int) -> Experiment:
        """Return what a client's requests show of this replica."""
        known = self.experiments.get(client)
        if known is None:
            if len(self.experiments) >= MAX_CLIENTS:
                return self.experiments.setdefault(OTHERS, Experiment())
            known = self.experiments[client] = Experiment()
        return known

    def failing_to(self) -> tuple[int, ...]:
        """Return the clients to which the replica fails in the row."""
        return tuple([client for client, each in self.experiments.items() if each.bad])

    def answers(self, client: int, now: float) -> None:
        """Note the clients that the replica answers well."""
        known = self.good_to
        if client not in known and len(known) >= MAX_CLIENTS:
            del known[next(iter(known))]
        known[client] = now

    def good_since(self, at: float) -> int:
        """Return how many clients were answered well since then, and not failed after that."""
        return sum(1 for when in self.good_to.values() if when >= at)

    def answered(self, client: int) -> bool:
        """Note a good answer in a row; return whether it ends the row.

        It takes back what its own client's failures say. The rest stands while the replica fails to
        more clients than it has answered well since.
        """
        known = self.experiments.get(client)
        if known is not None:
            self.row -= known.bad
            self.in_doubt -= known.bad
            known.bad, known.row = 0, 0.0
        return not self.in_doubt or self.good_since(self.row_at) >= len(self.failing_to())

    def end_row(self) -> None:
        """Forget the bad results in a row, after a good one."""
        self.row = self.refused = 0
        if self.in_doubt or self.again or self.counted:
            self.in_doubt = self.again = self.counted = 0
            self.origins.clear()
            for each in self.experiments.values():
                each.bad = 0

    def of_several(self) -> bool:
        """Return whether no single origin can be the cause of the failures in a row."""
        several = len(self.origins) + self.row - self.in_doubt >= MIN_ORIGINS
        return several or ANONYMOUS in self.origins

    def is_improbable(self, pool: PoolResults) -> bool:
        """Return whether a replica that is well gives so many failures in a row seldom enough.

        Each is taken to be as probable as failures were at the peers since the row began, at most
        ``MAX_SHARE``, or at this replica before, at most ``MAX_OWN_SHARE``.
        """
        elsewhere = max(pool.failures - self.row_failures - self.counted, 0)
        share = elsewhere / max(elsewhere + pool.answers - self.row_answers, 1)
        share = max(min(share, MAX_SHARE), self.row_share)
        return is_improbable(max(self.row + self.again, ENOUGH), 0.0, share)

    def share(self) -> float | None:
        """Return the failure share, ``None`` without results."""
        total = self.good + self.bad
        return None if total <= 0.0 else self.bad / total

    def count(self, now: float, window_s: float, *, good: int = 0, bad: int = 0) -> None:
        """Add results to the decayed counts."""
        kept = exp((self.at - now) / window_s) if self.at > NEVER else 0.0
        self.good, self.bad, self.at = self.good * kept + good, self.bad * kept + bad, now
