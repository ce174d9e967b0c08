"""Requests for which pickers had no pick, over the last minute. Pure.

Rules:

1. A picker reports sums since it started, by reason. What a report is above the one before is new;
   a sum that falls is that of a new process, and new as a whole. The first report of a picker is
   only the basis of what comes: it may have been counted before this server listened.
2. Time is cut into slots of ``SLOT_S``; ``SLOTS`` of them are kept.
3. At most ``MAX_PICKERS`` pickers are known; beyond that the one that reported least recently is
   forgotten. At most ``MAX_REASONS`` reasons are counted; others are left out.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SLOT_S: Final = 5.0
SLOTS: Final = 12
MAX_PICKERS: Final = 2048
MAX_REASONS: Final = 64


class PassBook:
    """The passes of all pickers; see the module's rules.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[str, Mapping[str, int]] = {}
        self._slots: dict[int, Counter[str]] = {}
        self._reasons: set[str] = set()

    def take(self, picker: str, sums: Mapping[str, int]) -> None:
        """Count a picker's report: sums since its start, by reason."""
        before = self._known.pop(picker, None)
        self._known[picker] = sums  # the last is the one that reported last
        while len(self._known) > MAX_PICKERS:
            del self._known[next(iter(self._known))]
        if before is None or sums == before:
            return
        number = self._expire()
        for reason, count in sums.items():
            earlier = before.get(reason, 0)
            risen = count - earlier if count >= earlier else count
            if risen and self._counts(reason):
                self._slots.setdefault(number, Counter())[reason] += risen

    def recent(self) -> Mapping[str, int]:
        """Return the passes of the last minute by reason."""
        self._expire()
        return sum(self._slots.values(), Counter())

    def _counts(self, reason: str) -> bool:
        if reason not in self._reasons and len(self._reasons) >= MAX_REASONS:
            return False
        self._reasons.add(reason)
        return True

    def _expire(self) -> int:
        """Drop old slots; return the number of the present one."""
        number = int(self._clock() // SLOT_S)
        for each in [each for each in self._slots if each <= number - SLOTS]:
            del self._slots[each]
        return number
