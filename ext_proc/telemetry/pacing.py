"""Decides how often an endpoint's page is read. Pure.

Rules:

1. An endpoint with requests in flight is read every ``fast_s``, an idle one every ``slow_s``.
2. All endpoints together are read at most ``pages_per_s`` times per second: if they would exceed
   this, all intervals are stretched by the same factor. This bounds CPU, because each page costs
   about the same.
3. A failing endpoint is read half as often with each failure, down to a quarter: it may return at
   any time, and is chosen last until it answers again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FAST_S: Final = 0.25
SLOW_S: Final = 1.0
PAGES_PER_S: Final = 1000.0
"""A quarter of one core with Triton's pages, see ``bench/cost/telemetry.py``."""
MAX_BACKOFF: Final = 4


@dataclass(frozen=True, slots=True)
class Pacing:
    """The intervals and the budget."""

    fast_s: float = FAST_S
    slow_s: float = SLOW_S
    pages_per_s: float = PAGES_PER_S

    def stretch(self, busy: int, idle: int) -> float:
        """Return the factor, at least 1, that keeps these endpoints within the budget."""
        wanted = busy / self.fast_s + idle / max(self.fast_s, self.slow_s)
        return max(1.0, wanted / self.pages_per_s)

    def interval_s(self, *, busy: bool, failures: int, stretch: float) -> float:
        """Return the seconds between two reads of one endpoint.

        Args:
            busy: The endpoint has requests in flight.
            failures: Consecutive failed reads.
            stretch: Result of ``stretch``.
        """
        backoff = min(2**failures, MAX_BACKOFF) if failures < MAX_BACKOFF else MAX_BACKOFF
        plain = self.fast_s if busy or failures else max(self.fast_s, self.slow_s)
        return plain * backoff * stretch
