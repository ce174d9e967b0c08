"""Bounds of the history, and which pieces are in use. Pure.

Rules:

1. Beyond ``max_revisions``, or ``max_bytes`` of serialized fleets, the oldest revisions are
   dropped. The newest always stays.
2. A piece is in use while a kept revision, or the fleet file applied last, names it. Each use is
   counted, so the number of counts is bounded by what is stored.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class History:
    """The kept revisions and the uses of pieces; see the module's rules.

    Args:
        max_revisions: Most revisions.
        max_bytes: Most bytes of serialized fleets.
    """

    def __init__(self, max_revisions: int, max_bytes: int) -> None:
        self._bounds = (max_revisions, max_bytes)
        self._kept: deque[tuple[int, int]] = deque()
        self._total = 0
        self._uses: Counter[str] = Counter()

    def add(self, number: int, size: int) -> None:
        """Add a revision, the newest, whose serialized fleet has ``size`` bytes."""
        self._kept.append((number, size))
        self._total += size

    def beyond(self) -> list[int]:
        """Drop the revisions beyond the bounds; return their numbers, oldest first."""
        most, most_bytes = self._bounds
        dropped = []
        while len(self._kept) > 1 and (len(self._kept) > most or self._total > most_bytes):
            number, size = self._kept.popleft()
            self._total -= size
            dropped.append(number)
        return dropped

    def use(self, digests: Iterable[str]) -> list[str]:
        """Count a use of each piece; return those that were not in use."""
        uses, fresh = self._uses, []
        for digest in digests:
            if digest not in uses:
                fresh.append(digest)
            uses[digest] += 1
        return fresh

    def release(self, digests: Iterable[str]) -> list[str]:
        """Take back a use of each piece; return those that are not in use any more."""
        uses, unused = self._uses, []
        for digest in digests:
            uses[digest] -= 1
            if uses[digest] <= 0:
                del uses[digest]
                unused.append(digest)
        return unused
