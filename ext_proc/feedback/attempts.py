"""Failed attempts of requests whose final entry has not arrived. Pure.

Rules:

1. An attempt whose verdict its siblings cannot change is judged when its entry arrives; the others
   wait for the request's final entry.
2. At most ``MAX_TICKETS`` requests are kept, the oldest dropped first, and ``MAX_ATTEMPTS`` of
   each. An entry that comes after its request's final one waits in vain until it is dropped.
3. A final entry that failed may stand for the same attempt as the last entry of an attempt: it does
   if there are as many of these as the request had attempts.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ext_proc.blame.evidence import Attempt

MAX_TICKETS: Final = 4096
MAX_ATTEMPTS: Final = 16
_began: Final = attrgetter("began_unix_s")


class Tried(NamedTuple):
    """A failed attempt."""

    attempt: Attempt
    began_unix_s: float
    since: float
    """When it began, as far as its entry's arrival tells; monotonic seconds."""
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
