"""Robust running estimates of a replica's recent answers. Pure.

An estimate is a mean of logarithms, so that tenfold deviations upwards and downwards count alike.
Each step is clipped (Huber, "Robust Estimation of a Location Parameter", 1964): one answer of a
minute among many of 50 ms moves the estimate by a fifth, not by minutes.
"""

from __future__ import annotations

from math import exp, log
from typing import Final

GAIN: Final = 0.1
"""Weight of the newest value, from the tenth value on."""
CLIP: Final = 2.0
"""Largest step, as a natural logarithm: a factor of 7.4."""
PEAK_DECAY_S: Final = 10.0
"""Time constant of the decay, seconds; the value of peak EWMA in Finagle and Linkerd."""
_SETTLED: Final = 5
"""Number of values after which steps are clipped."""
_LEAST: Final = 1e-4
_FULL: Final = 1.0 / GAIN
"""Number of values from which on each has the weight ``GAIN``."""


class Estimate:
    """A slowly changing positive number: a clipped geometric mean."""

    __slots__ = ("_mean", "count")

    def __init__(self) -> None:
        self._mean = 0.0
        self.count = 0
        """Number of values taken."""

    def put(self, value: float) -> None:
        """Take a value; values below 0.0001 count as 0.0001."""
        # Comparisons instead of `min` and `max`, because each answer calls this three times.
        self.count = count = self.count + 1
        step = log(value if value > _LEAST else _LEAST) - self._mean  # noqa: FURB136 - see above
        if count <= _SETTLED:
            self._mean += step * (1.0 / count)
            return
        if step > CLIP:
            step = CLIP
        elif step < -CLIP:
            step = -CLIP
        self._mean += step * (1.0 / count if count < _FULL else GAIN)

    @property
    def value(self) -> float | None:
        """The estimate, ``None`` before the first value."""
        return exp(self._mean) if self.count else None

    def rounded(self, digits: int) -> float | None:
        """Return the rounded estimate, for display."""
        return round(exp(self._mean), digits) if self.count else None

    @property
    def log(self) -> float:
        """Natural logarithm of the estimate; meaningless before the first value."""
        return self._mean

    def clear(self) -> None:
        """Drop all values."""
        self._mean, self.count = 0.0, 0


class Peak:
    """A peak duration: it rises to a longer value at once and decays towards shorter ones.

    Source: Finagle's ``PeakEwma``.
    """

    __slots__ = ("_at", "_seconds")

    def __init__(self) -> None:
        self._seconds: float | None = None
        self._at = 0.0

    def put(self, seconds: float, now: float) -> None:
        """Take a duration that ended at ``now`` (monotonic seconds)."""
        before = self._seconds
        if before is None or before <= seconds:
            self._seconds = seconds
        else:
            kept = exp((self._at - now) / PEAK_DECAY_S)
            peak = before * kept
            self._seconds = peak + seconds * (1.0 - kept) if peak > seconds else seconds
        self._at = now

    def value(self, now: float) -> float | None:
        """Return the decayed peak, ``None`` before the first duration."""
        return (
            None if self._seconds is None else self._seconds * exp((self._at - now) / PEAK_DECAY_S)
        )

    def clear(self) -> None:
        """Drop the peak."""
        self._seconds = None


class Served:
    """Estimates of how one replica answers in one pool, as measured by the proxy."""

    __slots__ = ("bytes_per_s", "first_byte_s", "peak")

    def __init__(self) -> None:
        self.first_byte_s = Estimate()
        """Seconds from the request's dispatch to the answer's first byte (TTFT)."""
        self.peak = Peak()
        """Peak of the times to the first byte."""
        self.bytes_per_s = Estimate()
        """Rate from the answer's first byte to its last."""

    def put(self, first_byte_s: float | None, bytes_per_s: float | None, now: float) -> None:
        """Take an answer; ``None`` = unknown."""
        if first_byte_s is not None:
            self.first_byte_s.put(first_byte_s)
            self.peak.put(first_byte_s, now)
        if bytes_per_s is not None:
            self.bytes_per_s.put(bytes_per_s)

    def clear(self) -> None:
        """Drop all values, after the replica's process was restarted."""
        self.first_byte_s.clear()
        self.peak.clear()
        self.bytes_per_s.clear()

    def describe(self) -> dict[str, object]:
        """Return the estimates, ready for JSON."""
        return {
            "first_byte_s": self.first_byte_s.rounded(4),
            "bytes_per_s": self.bytes_per_s.rounded(0),
            "answers": self.first_byte_s.count,
        }
