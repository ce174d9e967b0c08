"""Failing origins: where requests of one origin fail with answers, in one pool. Pure.

Rules:

1. Within the window an origin's failures count once on one replica. An origin that fails on two
   replicas fails alike: from then on its failures count on none.
2. Where an origin has failed ``threshold`` times on one replica and nowhere else, its next requests
   are sent elsewhere, if they can be (``avoided``). That affects no other origin. Clients can
   foresee it, so it is no evidence.
3. An origin is forgotten at the end of the window that its first failure opened. At most
   ``MAX_ORIGINS`` are kept, the oldest dropped first.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ext_proc.routing.values.pool import EndpointKey

MAX_ORIGINS: Final = 1024


class Recurrence(StrEnum):
    """What a failure is, next to others of its origin."""

    FIRST = "first"
    """The origin's first on any replica."""
    AGAIN = "again"
    """One more on the same replica."""
    ALIKE = "alike"
    """The origin fails on several replicas."""


class _Failing:
    """Failures of one origin."""

    __slots__ = ("alike", "key", "since", "times")

    def __init__(self, key: EndpointKey, since: float) -> None:
        self.key = key
        self.since = since
        self.times = 1
        self.alike = False


class FailingOrigins:
    """Failures of a pool by origin; see the module's rules."""

    def __init__(self) -> None:
        self._of: dict[int, _Failing] = {}

    def __len__(self) -> int:
        return len(self._of)

    def failed(self, origin: int, key: EndpointKey, now: float, window_s: float) -> Recurrence:
        """Note a failure; only the first counts against the replica."""
        known = self._known(origin, now, window_s)
        if known is None:
            if len(self._of) >= MAX_ORIGINS:
                del self._of[next(iter(self._of))]
            self._of[origin] = _Failing(key, now)
            return Recurrence.FIRST
        known.times += 1
        known.alike = known.alike or known.key != key
        return Recurrence.ALIKE if known.alike else Recurrence.AGAIN

    def avoided(
        self, origin: int, now: float, window_s: float, threshold: int
    ) -> EndpointKey | None:
        """Return the replica that an origin's next request should not be sent to."""
        known = self._known(origin, now, window_s)
        return known.key if known and known.times >= threshold and not known.alike else None

    def expire(self, now: float, window_s: float) -> None:
        """Forget what is older than the window."""
        while self._of:
            oldest = next(iter(self._of))
            if self._known(oldest, now, window_s) is not None:
                break

    def _known(self, origin: int, now: float, window_s: float) -> _Failing | None:
        known = self._of.get(origin)
        if known is not None and now - known.since > window_s:
            del self._of[origin]
            return None
        return known
