"""Relief: what a picker leaves out while its own CPU does not suffice. Pure.

Rules:

1. A look tells for which share of its time the event loop's thread had something to compute. At
   ``FULL`` or more in ``DOWN`` looks in succession nothing is left of it: requests wait for the
   picker, whatever it decides. Then the level rises by one.
2. ``CHEAP``: prompts are not cut, hashed or counted, and policies that price seconds (``auto``,
   ``learned``) are replaced by the fewest in flight. All else stays: leases, versions, subsets,
   limits, the queue, conditions, and policies that hash a key.
3. ``PASS``: in addition, requests that any replica may serve go on without a pick, where the pool
   lets the proxy balance them and has no body judged.
4. The level falls by one after ``UP`` looks in succession below ``CALM``. If it rises again within
   as many looks, twice as many are needed the next time, at most ``MOST_UP``, so that a load that
   only the lower level can bear does not swing between both.
"""

from __future__ import annotations

from typing import Final

USUAL: Final = 0
CHEAP: Final = 1
PASS: Final = 2
NAMES: Final = ("usual", "cheap", "pass")

FULL: Final = 0.95
CALM: Final = 0.7
DOWN: Final = 3
UP: Final = 10
MOST_UP: Final = 160


class Relief:
    """The level in force; see the module's rules."""

    __slots__ = ("_again", "_calm", "_full", "_up", "level")

    def __init__(self) -> None:
        self.level = USUAL
        """``USUAL``, ``CHEAP`` or ``PASS``."""
        self._full = 0
        """Looks in succession at ``FULL`` or more."""
        self._calm = 0
        """Looks in succession below ``CALM``."""
        self._up = UP
        self._again = 0
        """Looks in which a rise would be one too soon after a fall."""

    def __repr__(self) -> str:
        return f"<Relief {NAMES[self.level]}>"

    def look(self, share: float) -> bool:
        """Take a look; return whether the level changed.

        Args:
            share: Part of the time since the last look in which the thread computed or waited for a
                CPU, 0 to 1.
        """
        self._full = self._full + 1 if share >= FULL else 0
        self._calm = self._calm + 1 if share < CALM else 0
        self._again = max(0, self._again - 1)
        if self._full >= DOWN and self.level < PASS:
            self.level += 1
            if self._again:
                self._up = min(2 * self._up, MOST_UP)
            self._full = self._again = 0
            return True
        if self._calm >= self._up and self.level > USUAL:
            self.level -= 1
            self._calm, self._again = 0, self._up
            return True
        if self.level == USUAL and not self._again:
            self._up = UP
        return False
