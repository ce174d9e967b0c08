"""Guard: decides when a learned policy may act, and stops it when it does harm.

States and transitions::

    SHADOW   the incumbent decides      proven better            -> LIVE
    LIVE     the policy decides         any trip (rule 2)        -> TRIPPED
    TRIPPED  the incumbent decides      after ``TRIP_S``         -> SHADOW

Rules:

1. While the policy is live, the incumbent decides a share ``CONTROL`` of the requests, for
   comparison.
2. The policy is tripped when, among the finished requests in its windows, its 99th percentile of
   cost is above ``WORSE`` times that of the control share, or its failure share is above
   ``FAILING`` times the control's (with at least ``LEAST_FAILURES`` failures); when readings are
   stale (``dark``); or when one replica got more than twice its share of the last ``PICKS``
   requests.
3. After a trip the policy is in shadow mode again and must be proven again.
"""

from __future__ import annotations

from collections import Counter, deque
from enum import StrEnum
from math import ceil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ext_proc.routing.values.pool import EndpointKey

CONTROL: Final = 0.05
TRIP_S: Final = 600.0
WORSE: Final = 1.2
FAILING: Final = 1.5
LEAST_FAILURES: Final = 5
ENDS: Final = 2_000
"""Latest finished requests of the policy that are compared."""
CONTROL_ENDS: Final = 500
"""Latest finished requests of the control share that are compared."""
LEAST_CONTROL: Final = 100
"""Minimum number of finished requests of the control share for a comparison."""
JUDGE_EVERY: Final = 64
PICKS: Final = 256
MOST_SHARE: Final = 2.0


class GuardState(StrEnum):
    """State of the guard."""

    SHADOW = "shadow"
    LIVE = "live"
    TRIPPED = "tripped"


class _Arm:
    """The latest finished requests of one side."""

    __slots__ = ("ends",)

    def __init__(self, most: int) -> None:
        self.ends: deque[float | None] = deque(maxlen=most)
        """Costs; ``None`` = failed."""

    def p99(self) -> float | None:
        costs = sorted([each for each in self.ends if each is not None])
        return costs[ceil(0.99 * len(costs)) - 1] if costs else None

    def failures(self) -> int:
        return sum(each is None for each in self.ends)


class Guard:
    """The state, and the windows that are compared while the policy is live."""

    def __init__(self) -> None:
        self._state = GuardState.SHADOW
        self._until = 0.0
        self.version = 0
        """Number of times it went live; reasons use it as the model's version."""
        self.trips: Counter[str] = Counter()
        """Number of trips by reason."""
        self._clear()

    def __repr__(self) -> str:
        return f"<Guard {self._state} version={self.version}>"

    def _clear(self) -> None:
        self._acting, self._control = _Arm(ENDS), _Arm(CONTROL_ENDS)
        self._picks: deque[EndpointKey] = deque()
        self._taken: Counter[EndpointKey] = Counter()
        self._ended = 0

    def state(self, now: float) -> GuardState:
        """Return the current state."""
        if self._state is GuardState.TRIPPED and now >= self._until:
            return GuardState.SHADOW
        return self._state

    def proven(self, now: float) -> None:
        """Go live; has effect in shadow mode only."""
        if self.state(now) is GuardState.SHADOW:
            self._state = GuardState.LIVE
            self.version += 1
            self._clear()

    def trip(self, reason: str, now: float) -> None:
        """Stop the policy; has effect only if it is live."""
        if self._state is GuardState.LIVE:
            self._state, self._until = GuardState.TRIPPED, now + TRIP_S
            self.trips[reason] += 1

    def picked(
        self, key: EndpointKey, shares: Iterable[tuple[EndpointKey, float]], now: float
    ) -> None:
        """Note a pick of the live policy.

        Args:
            key: The replica.
            shares: The candidates with their shares of the capacity.
            now: Monotonic seconds.
        """
        self._picks.append(key)
        self._taken[key] += 1
        if len(self._picks) <= PICKS:
            return
        self._taken[self._picks.popleft()] -= 1
        fair = next((share for each, share in shares if each == key), 1.0)
        if self._taken[key] > MOST_SHARE * fair * PICKS:
            self.trip("one-replica", now)

    def ended(self, cost: float | None, now: float, *, control: bool) -> None:
        """Note a finished request of the live policy or of the control share.

        Args:
            cost: Its cost; ``None`` = it failed.
            now: Monotonic seconds.
            control: Whether the incumbent decided it.
        """
        (self._control if control else self._acting).ends.append(cost)
        self._ended += 1
        if self._ended % JUDGE_EVERY == 0 and len(self._control.ends) >= LEAST_CONTROL:
            self._compare(now)

    def _compare(self, now: float) -> None:
        acting, control = self._acting, self._control
        ours, theirs = acting.p99(), control.p99()
        if ours is not None and theirs is not None and ours > WORSE * theirs:
            self.trip("slower", now)
        failed = acting.failures()
        usual = control.failures() / len(control.ends)
        if failed >= LEAST_FAILURES and failed / len(acting.ends) > FAILING * usual:
            self.trip("failing", now)

    def describe(self, now: float) -> dict[str, object]:
        """Return state and counts, ready for JSON."""
        state = self.state(now)
        return {
            "state": str(state),
            "version": self.version,
            "tripped_for_s": round(self._until - now, 1) if state is GuardState.TRIPPED else None,
            "trips": dict(self.trips),
            "p99": self._acting.p99(),
            "p99_control": self._control.p99(),
            "failures": self._acting.failures(),
            "failures_control": self._control.failures(),
        }
