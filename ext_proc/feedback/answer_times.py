"""Times to the first bytes of answers, each told once. Pure.

Rules:

1. The first entry of a request that has the time tells it. A retry makes it meaningless.
2. A running request whose time was told is kept until its final entry, at most ``MAX_TOLD`` of
   them, the oldest dropped first. The final entry of a dropped one tells the time again.
3. A request without a number tells nothing. It was not charged: the ledger was full, or it is no
   inference, and its time (of a call for readiness, or metadata) is not that of a prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ext_proc.feedback.entries import Entry

MAX_TOLD: Final = 16_384
"""Running requests that are remembered; each takes about 100 bytes."""


class AnswerTimes:
    """Tells the time to the first byte once per request; see the module's rules."""

    def __init__(self) -> None:
        self._told: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._told)

    def take(self, entry: Entry, number: int | None) -> float | None:
        """Return the seconds to the first byte if this entry is the one to tell them.

        Args:
            entry: An entry of a request that has an answer.
            number: The request's number; ``None`` = it has none.
        """
        if number is None:
            return None
        told = entry.final and self.forget(number)
        first_byte_s = entry.first_byte_s
        if told or first_byte_s is None or entry.attempts > 1:
            return None
        if not entry.final:
            if number in self._told:
                return None
            if len(self._told) >= MAX_TOLD:
                del self._told[next(iter(self._told))]
            self._told[number] = None
        return first_byte_s

    def forget(self, number: int) -> bool:
        """Forget a request that has ended; return whether its time was told."""
        return bool(self._told) and self._told.pop(number, self) is None
