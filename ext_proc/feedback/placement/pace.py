"""When a replica is asked again which models it has. Pure.

Rules:

1. A replica is asked at the pool's interval of health checks, at most ``MAX_INTERVAL_S``. One that
   has no API that tells it is asked ``SELDOM`` times less often.
2. It is asked every ``QUICK_S`` while it refuses connections or loads a model, and for
   ``QUICK_FOR_S`` after a change of its models: changes come in groups.
3. Whoever calls for a look gets it at once, but never two within ``GAP_S``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.listing import PlacementState

if TYPE_CHECKING:
    from ext_proc.routing.values.listing import Listing

QUICK_S: Final = 0.5
QUICK_FOR_S: Final = 10.0
GAP_S: Final = 0.2
MAX_INTERVAL_S: Final = 15.0
SELDOM: Final = 6
_NEVER: Final = float("-inf")


class NoListing(StrEnum):
    """Why a look found no listing."""

    GONE = "gone"
    """The connection was refused: the process is not there."""
    FAILED = "failed"
    """Anything else: what was known stays."""
    SILENT = "silent"
    """The replica has no API that tells its models."""


class Pace:
    """The pauses between the looks at one replica.

    Args:
        interval_s: The pool's interval of health checks, seconds.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = min(interval_s, MAX_INTERVAL_S)
        self._changed_at = _NEVER

    def pause(self, found: Listing | NoListing, now: float, *, changed: bool) -> float:
        """Return the seconds to the next look.

        Args:
            found: What the look found.
            now: Monotonic seconds.
            changed: Whether it differs from what was known.
        """
        if changed:
            self._changed_at = now
        if found is NoListing.SILENT:
            return self._interval_s * SELDOM
        unsettled = found is NoListing.GONE or (
            not isinstance(found, NoListing)
            and any(row.state is PlacementState.LOADING for row in found.rows)
        )
        if unsettled or now - self._changed_at < QUICK_FOR_S:
            return min(QUICK_S, self._interval_s)
        return self._interval_s
