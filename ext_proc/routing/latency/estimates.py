"""What a replica's recent answers were like: robust running estimates. Pure.

The estimate is a mean of logarithms, so durations that differ tenfold count alike upwards and
downwards, and a single step is clipped (Huber, "Robust Estimation of a Location Parameter", 1964):
one answer of a minute among many of 50 ms moves it by a fifth, not by minutes.
"""

from __future__ import annotations

from math import exp, log
from typing import Final

GAIN: Final = 0.1
"""Weight of the newest value, once there are ten."""
CLIP: Final = 2.0
"""Largest step, as a logarithm: a factor of 7.4."""
PEAK_DECAY_S: Final = 10.0
"""Finagle's and Linkerd's decay of peak EWMA."""
_SETTLED: Final = 5
"""Values from which on steps are clipped."""
_LEAST: Final = 1e-4
_FULL: Final = 1.0 / GAIN
"""Values from which on each has the weight ``GAIN``."""


class Estimate:
    """One number that changes slowly, always above 0."""

    __slots__ = ("_mean", "count")

    def __init__(self) -> None:
        self._mean = 0.0
        self.count = 0
        """Values taken."""

    def put(self, value: float) -> None:
        """Take a value; what is below 0.0001 counts as that."""
        # Comparisons instead of `min` and `max`, as each answer passes here three times.
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
        """The estimate, ``None`` without any value."""
        return exp(self._mean) if self.count else None

    def rounded(self, digits: int) -> float | None:
        """Return the estimate for people."""
        return round(exp(self._mean), digits) if self.count else None

    @property
    def log(self) -> float:
        """Its logarithm; means nothing without any value."""
        return self._mean

    def clear(self) -> None:
        """Begin anew."""
        self._mean, self.count = 0.0, 0


class Peak:
    """A duration that jumps to a longer one at once and decays to shorter ones.

    Source: Finagle's ``PeakEwma``.
    """

    __slots__ = ("_at", "_seconds")

    def __init__(self) -> None:
        self._seconds: float | None = None
        self._at = 0.0

    def put(self, seconds: float, now: float) -> None:
        """Take a duration that ended now (monotonic seconds)."""
        before = self._seconds
        if before is None or before <= seconds:
            self._seconds = seconds
        else:
            kept = exp((self._at - now) / PEAK_DECAY_S)
            peak = before * kept
            self._seconds = peak + seconds * (1.0 - kept) if peak > seconds else seconds
        self._at = now

    def value(self, now: float) -> float | None:
        """Return it as it is now, ``None`` without any duration."""
        return (
            None if self._seconds is None else self._seconds * exp((self._at - now) / PEAK_DECAY_S)
        )

    def clear(self) -> None:
        """Begin anew."""
        self._seconds = None


class Served:
    """How one replica answered in one pool, by what the proxy saw."""

    __slots__ = ("bytes_per_s", "first_byte_s", "peak")

    def __init__(self) -> None:
        self.first_byte_s = Estimate()
        """From the request's dispatch to the answer's first byte."""
        self.peak = Peak()
        """Of the times to the first byte."""
        self.bytes_per_s = Estimate()
        """From the answer's first byte to its last."""

    def put(self, first_byte_s: float | None, bytes_per_s: float | None, now: float) -> None:
        """Take an answer; ``None`` = that part of it is not known."""
        if first_byte_s is not None:
            self.first_byte_s.put(first_byte_s)
            self.peak.put(first_byte_s, now)
        if bytes_per_s is not None:
            self.bytes_per_s.put(bytes_per_s)

    def clear(self) -> None:
        """Begin anew: the replica's process is a new one."""
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
