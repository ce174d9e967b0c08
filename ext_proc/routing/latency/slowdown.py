"""How many times slower a replica has become, by first bytes that came late.

Rules:

1. A replica reads prompts one after the other. What a prompt took is the time to its first byte
   from the first byte before its own, or from when its turn should have come, if that was later
   (Lindley 1952). What it waited for others does not enter.
2. What prompts take beyond ``TOLERANCE`` times of what was expected adds up; what they take less is
   taken off, down to nothing. Above a threshold the replica has become slow (CUSUM; Page 1954).
3. One prompt is proof where it took ``CLEAR_S`` too long, and twice as long as with an empty
   cache, as it may have found nothing there. Else it takes ``WITNESSES`` in a row.
4. The replica is then held for as many times slower as its latest prompts took what was expected,
   until they take what they should. Whom nobody asks cannot show that it is well: of what is known
   half is believed after ``HALF_S`` without an answer.
5. State is constant, and no prompt counts for much more than ``MOST`` times of what was expected:
   a short one that hung for a minute is soon outweighed.
"""

from __future__ import annotations

from typing import Final

TOLERANCE: Final = 2.0
"""Clocks and estimates err; from here on it is the replica."""
THRESHOLD_S: Final = 0.25
"""Who stood still for less, once, is not slow. The factor starts from as much of good work."""
DEVIATIONS: Final = 12.0
"""The threshold in usual deviations of first bytes, where that is more: requests of other pickers
stand between ours, and then a prompt may take anything."""
CLEAR_S: Final = 0.75
"""One prompt that took so much too long is proof. Requests of other pickers that stand between ours
take less, for the most part."""
WITNESSES: Final = 2
KEEP: Final = 0.7
"""What remains of an earlier prompt's weight after each new one."""
LEAST: Final = 1.35
"""Nobody is called slow for less."""
MOST: Final = 20.0
"""Nor held for slower."""
HALF_S: Final = 30.0


class Slowdown:
    """What the latest prompts of one replica say of a change of its speed."""

    __slots__ = ("_at", "_excess", "_expected", "_factor", "_took")

    def __init__(self) -> None:
        self._at = 0.0
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self._excess = self._took = self._expected = 0.0
        self._factor = 1.0

    @property
    def known(self) -> bool:
        """Return whether the replica has become slow."""
        return self._factor > 1.0

    def factor(self, now: float) -> float:
        """Return how many times slower the replica is at some moment; 1 = as ever."""
        if self._factor <= 1.0:
            return 1.0
        believed = 0.5 ** (max(0.0, now - self._at) / HALF_S)
        factor = 1.0 + (self._factor - 1.0) * believed
        return factor if factor >= LEAST else 1.0

    def add(
        self, took_s: float, expected_s: float, *, cold_s: float, noise_s: float, at: float
    ) -> None:
        """Take what a prompt took.

        Args:
            took_s: Seconds from when its turn came to its first byte.
            expected_s: The seconds that were expected of that.
            cold_s: The same with nothing in the cache.
            noise_s: By how much first bytes usually miss what is expected of them.
            at: When its first byte came, monotonic seconds.
        """
        if not self._excess and took_s <= TOLERANCE * expected_s:
            return  # as nearly always
        self._at = max(self._at, at)
        keep = KEEP if self.known else 1.0
        self._took = self._took * keep + min(took_s, MOST * expected_s + THRESHOLD_S)
        self._expected = self._expected * keep + expected_s
        if not self.known:
            beyond = took_s - TOLERANCE * expected_s
            threshold = max(THRESHOLD_S, DEVIATIONS * noise_s)
            if took_s <= TOLERANCE * cold_s or beyond < CLEAR_S:
                beyond = min(beyond, threshold / WITNESSES)
            self._excess = max(0.0, self._excess + beyond)
            if self._excess == 0.0:
                self.clear()
            if self._excess < threshold:
                return
        self._factor = min((self._took + THRESHOLD_S) / (self._expected + THRESHOLD_S), MOST)
        if self._factor < LEAST:
            self.clear()
