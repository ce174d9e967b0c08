"""Slowdown: the factor by which a replica has become slower, detected from late first bytes.

Rules:

1. A replica processes prompts one after the other. The service time of a prompt ends at its first
   byte. It starts at the previous first byte, or at the expected start of the prompt if that is
   later (Lindley 1952). Time spent waiting for other prompts is excluded.
2. Service time beyond ``TOLERANCE`` times the expected time is added to a sum; time below it is
   subtracted, down to 0. The replica is slow once the sum exceeds a threshold (CUSUM; Page 1954).
3. One prompt is enough if it took ``CLEAR_S`` too long and more than ``TOLERANCE`` times as long as
   with an empty cache, because it may have been a cache miss. Otherwise ``CONFIRMATIONS`` prompts
   in a row are needed.
4. The factor of a slow replica is the ratio of actual to expected time of its latest prompts, until
   the ratio is back to normal. Without new samples the estimate decays with half-life ``HALF_S``.
5. State is of constant size, and no prompt counts for much more than ``MOST`` times its expected
   time: a short prompt that hung for a minute is soon outweighed.
"""

from __future__ import annotations

from typing import Final

TOLERANCE: Final = 2.0
"""Multiple of the expected time below which the delay may be an error of clocks and estimates."""
THRESHOLD_S: Final = 0.25
"""Minimum of the threshold: a single shorter pause is no slowdown. As many seconds of normal work
are added to actual and expected time in the factor."""
DEVIATIONS: Final = 12.0
"""The threshold as a multiple of the usual deviation of first bytes, if that is larger: requests of
other pickers are interleaved with ours, so the time of a prompt may vary widely."""
CLEAR_S: Final = 0.75
"""Excess time for which one prompt is enough; interleaved requests of other pickers mostly cause
less."""
CONFIRMATIONS: Final = 2
KEEP: Final = 0.7
"""Factor on the weight of earlier prompts with each new one."""
LEAST: Final = 1.35
"""Minimum factor; a smaller one counts as 1."""
MOST: Final = 20.0
"""Maximum factor."""
HALF_S: Final = 30.0


class Slowdown:
    """The slowdown of one replica, estimated from its latest prompts."""

    __slots__ = ("_at", "_excess", "_expected", "_factor", "_took")

    def __init__(self) -> None:
        self._at = 0.0
        self.clear()

    def clear(self) -> None:
        """Reset to no slowdown."""
        self._excess = self._took = self._expected = 0.0
        self._factor = 1.0

    @property
    def known(self) -> bool:
        """Whether the replica has become slow."""
        return self._factor > 1.0

    def factor(self, now: float) -> float:
        """Return the decayed factor at ``now`` (monotonic seconds); 1 = no slowdown."""
        if self._factor <= 1.0:
            return 1.0
        weight = 0.5 ** (max(0.0, now - self._at) / HALF_S)
        factor = 1.0 + (self._factor - 1.0) * weight
        return factor if factor >= LEAST else 1.0

    def add(
        self, took_s: float, expected_s: float, *, cold_s: float, noise_s: float, at: float
    ) -> None:
        """Take the service time of a prompt.

        Args:
            took_s: Its service time, seconds (rule 1).
            expected_s: Its expected service time, seconds.
            cold_s: Its expected service time with an empty cache, seconds.
            noise_s: Usual deviation of first bytes from their expected time, seconds.
            at: Time of its first byte, monotonic seconds.
        """
        if not self._excess and took_s <= TOLERANCE * expected_s:
            return  # the usual case
        self._at = max(self._at, at)
        keep = KEEP if self.known else 1.0
        self._took = self._took * keep + min(took_s, MOST * expected_s + THRESHOLD_S)
        self._expected = self._expected * keep + expected_s
        if not self.known:
            beyond = took_s - TOLERANCE * expected_s
            threshold = max(THRESHOLD_S, DEVIATIONS * noise_s)
            if took_s <= TOLERANCE * cold_s or beyond < CLEAR_S:
                beyond = min(beyond, threshold / CONFIRMATIONS)
            self._excess = max(0.0, self._excess + beyond)
            if self._excess == 0.0:
                self.clear()
            if self._excess < threshold:
                return
        self._factor = min((self._took + THRESHOLD_S) / (self._expected + THRESHOLD_S), MOST)
        if self._factor < LEAST:
            self.clear()
