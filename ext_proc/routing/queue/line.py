"""How long the requests of one pool and model wait: their number, and how fast they leave. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

from ext_proc.routing.queue.waiting import MOST_S
from ext_proc.routing.values.request import HIGH, LOW

STANDING_S: Final = 1.0
"""A queue that was not empty for so long is one that stands: the replicas do not keep up."""
PATIENCE_S: Final = 1.0
"""Longest expected wait of a request that joins a queue that stands, seconds."""
LATEST: Final = 64
"""Departures by which the rate is measured."""
LEAST: Final = 3
"""Departures below which the rate is unknown until the queue stands; then it is less than one
departure more would give."""


class WaitLine:
    """The requests of one pool and model that wait.

    A burst may wait for `MOST_S`. Where more comes than replicas can do, a long queue would make
    all wait, and each answer late; so a queue that stands is kept as short as `PATIENCE_S`.

    The rate is that of the latest departures since the queue was empty last: what leaves an empty
    queue at once tells how fast requests come, not how fast they could leave.
    """

    __slots__ = ("_left", "begun", "by_band")

    def __init__(self) -> None:
        self.by_band = [0, 0]
        """Requests that wait, by band."""
        self.begun = 0.0
        """When the queue was empty last, monotonic seconds."""
        self._left: deque[float] = deque(maxlen=LATEST)

    @property
    def count(self) -> int:
        """Requests that wait."""
        return self.by_band[0] + self.by_band[1]

    def joined(self, band: int, now: float) -> None:
        """Count a request."""
        if not self.count:
            self.begun = now
            self._left.clear()
        self.by_band[band] += 1

    def left(self, band: int) -> None:
        """Count a request that is gone no longer."""
        self.by_band[band] -= 1

    def departed(self, now: float) -> None:
        """Note that a replica took a request."""
        self._left.append(now)

    def rate(self, now: float) -> float | None:
        """Return the departures per second; ``None`` = unknown."""
        left = self._left
        if len(left) < LEAST:
            stood = now - self.begun if self.count else 0.0
            return (len(left) + 1) / stood if stood >= STANDING_S else None
        # The oldest of a full window begins it; before that the window begins with the queue.
        full = len(left) == LATEST
        passed = now - (left[0] if full else self.begun)
        return (len(left) - full) / passed if passed > 0 else None

    def wait_s(self, band: int, now: float) -> float | None:
        """Return how long a request that joins now is expected to wait; ``None`` = unknown."""
        rate = self.rate(now)
        if rate is None or not self.count:
            return None
        return (sum(self.by_band[: band + 1]) + 1) / rate

    def describe(self, now: float) -> dict[str, object]:
        """Return what waits, by band, and how fast it leaves, ready for JSON."""
        return {
            "high": self.by_band[HIGH],
            "low": self.by_band[LOW],
            "not_empty_s": round(now - self.begun, 3) if self.count else None,
            "leave_per_s": self.rate(now),
            "expected_wait_s": self.wait_s(LOW, now),
        }

    def patience_s(self, now: float) -> float:
        """Return how long a request that joins now may be expected to wait.

        It is short only where the rate was measured.
        """
        stands = self.count and now - self.begun >= STANDING_S
        return PATIENCE_S if stands and len(self._left) >= LEAST else MOST_S
