"""What is kept of requests until their final entries: failed attempts, first bytes told. Pure.

Rules:

1. An attempt whose verdict its siblings cannot change is judged when its entry arrives; the others
   wait for the request's final entry.
2. At most ``MAX_TICKETS`` requests are kept, the oldest dropped first, and ``MAX_ATTEMPTS`` of
   each. An entry that comes after its request's final one waits in vain until it is dropped.
3. A final entry that failed may stand for the same attempt as the last entry of an attempt: it does
   if there are as many of these as the request had attempts.
4. The first entry of a request that has the time to the first byte tells it, once. A retry makes it
   meaningless.
5. A running request whose time was told is kept until its final entry, at most ``MAX_TOLD`` of
   them, the oldest dropped first. The final entry of a dropped one tells the time again.
6. A request without a number tells no time. It was not charged: the ledger was full, or it is no
   inference, and its time (of a call for readiness, or metadata) is not that of a prompt.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ext_proc.blame.evidence import Attempt
    from ext_proc.feedback.entries import Entry


MAX_TICKETS: Final = 4096
MAX_ATTEMPTS: Final = 16
_began: Final = attrgetter("began_unix_s")


class Tried(NamedTuple):
    """A failed attempt."""

    attempt: Attempt
    began_unix_s: float
    since: float
    """When it began, as far as its entry's arrival tells; monotonic seconds."""
    given: float | None
    """When the replica had the whole request, as far as the log tells; monotonic seconds. ``None``
    = never: its client did not send all of it."""
    outcome: str | None = None
    """Its outcome if it has been judged."""


class FailedAttempts:
    """Failed attempts by ticket; see the module's rules."""

    def __init__(self) -> None:
        self._of: dict[int, list[Tried]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def add(self, number: int, tried: Tried) -> None:
        """Keep a failed attempt of the request with this ticket."""
        kept = self._of.get(number)
        if kept is None:
            if len(self._of) >= MAX_TICKETS:
                del self._of[next(iter(self._of))]
            kept = self._of[number] = []
        if len(kept) < MAX_ATTEMPTS:
            kept.append(tried)

    def read(self, number: int) -> bool:
        """Return whether a failed attempt of a request may have been read by its replica."""
        return any(tried.attempt.read is not False for tried in self._of.get(number, ()))

    def take(self, number: int) -> list[Tried]:
        """Remove and return the failed attempts of a request, in the order of their beginnings."""
        return sorted(self._of.pop(number, ()), key=_began)


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
