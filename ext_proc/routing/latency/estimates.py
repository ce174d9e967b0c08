"""Estimators in constant space: of a replica's answers, and for the latency model. Pure.

Rules:

1. A sample costs constant time and moves an estimate by a bounded amount.
2. The weight of earlier samples decays exponentially, so that estimates follow changes.
3. A coefficient that the samples do not determine, because of noise or too little spread, stays
   near its prior.

An ``Estimate`` is a mean of logarithms, so that tenfold deviations upwards and downwards count
alike. Each step is clipped (Huber, "Robust Estimation of a Location Parameter", 1964): one answer
of a minute among many of 50 ms moves the estimate by a fifth, not by minutes.
"""

from __future__ import annotations

from math import exp, inf, log, sqrt
from typing import Final, NamedTuple

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


PRIOR_SAMPLES: Final = 1.0
"""Weight of the cold default, in requests. With 6, the estimate for a fleet ten times as fast was
still half of the true speed after 60 requests."""
PRIOR_SPREAD: Final = 1.0
"""Standard deviation of the prior of the speed, as a share of the cold default. If answers take 100
times as long as prefill, durations do not determine the speed, and the default stays in force."""
CLOCK_SPREAD: Final = 0.5
"""Standard deviation of the prior of the clock's coefficient."""
SIGMA_PER_MEAN: Final = 1.25
"""Standard deviation per mean absolute deviation, for a normal distribution."""
PRIOR_TOKENS: Final = 512.0
"""Spread of prompt lengths, in tokens, below which samples determine the speed poorly."""
KEEP: Final = 1.0 - 1.0 / 512.0
"""Factor on the weight of earlier samples with each new one."""
RATE_PRIOR: Final = 4_096.0
"""Weight of the prior of a ``Rate``, in units of work (tokens)."""
FITTED: Final = 3.0
"""Coefficients of a ``Fit``."""
SURE: Final = 8.0
"""Samples before which residuals are not clipped, because their usual size is unknown."""
STEPS_START: Final = 24.0
STEP_GAIN: Final = 1.2
STEP_LEAST: Final = 0.006
STEP: Final = 0.02
"""Maximum step of a ratio per sample, as a logarithm. Errors of requests that queue behind each
other are correlated: a single error of the clock makes about twenty of them look slow. This must
not be enough to count a replica as slow, so steps are short and many samples are needed."""


class Median:
    """A running median of positive numbers, in constant space.

    It is tracked by stochastic approximation (Robbins and Monro 1951) in the logarithm: one step
    up or down per sample.
    """

    __slots__ = ("log", "seen")

    def __init__(self, start: float) -> None:
        self.log = log(start)
        self.seen = 0

    def add(self, value: float) -> None:
        """Take a value."""
        self.seen += 1
        step = max(STEP_LEAST, STEP_GAIN / (STEPS_START + self.seen))
        self.log += step if log(max(value, 1e-9)) > self.log else -step

    def open_with(self, value: float) -> None:
        """Start at the first value, then add further ones."""
        if self.seen:
            self.add(value)
        else:
            self.seen = 1
            self.log = log(max(value, 1e-9))


class Fit:
    """Regression ``y = a + b * u + c * w``: least squares with forgetting, clipping and ridge.

    Args:
        prior: Prior of ``b``; the prior of ``c`` is 1.
        fixed: Initial value of ``a``.
        most: Maximum factor between ``b`` and its prior, either way.
        follows: Whether samples are times to first tokens: the spread of the prior grows with
            ``b``, and noise is that around the latest fit. Else an engine that is many times slower
            or faster than the default is held near the default for long.
    """

    __slots__ = (
        "a",
        "b",
        "c",
        "count",
        "follows",
        "mu",
        "mw",
        "my",
        "prior",
        "range",
        "scale",
        "sums",
    )

    def __init__(self, prior: float, fixed: float, most: float, *, follows: bool = False) -> None:
        self.follows = follows
        self.prior = prior
        self.range = most
        self.a, self.b, self.c = fixed, prior, 1.0
        self.count = self.mu = self.mw = self.my = 0.0
        self.sums = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        self.scale = 0.0

    def add(self, u: float, w: float, y: float) -> None:
        """Take a sample."""
        if self.count >= 1.0:
            residual = y - self.a - self.b * u - self.c * w
            if self.count >= SURE and abs(residual) > 3.0 * self.scale:
                clipped = 3.0 * self.scale if residual > 0.0 else -3.0 * self.scale
                y += clipped - residual
                residual = clipped
            self.scale += (abs(residual) - self.scale) / min(self.count + 1.0, 32.0)
        before = KEEP * self.count
        self.count = before + 1.0
        du, dw, dy = u - self.mu, w - self.mw, y - self.my
        self.mu += du / self.count
        self.mw += dw / self.count
        self.my += dy / self.count
        part = before / self.count
        uu, uw, ww, uy, wy, yy = self.sums
        uu = KEEP * uu + part * du * du
        uw = KEEP * uw + part * du * dw
        ww = KEEP * ww + part * dw * dw
        uy = KEEP * uy + part * du * dy
        wy = KEEP * wy + part * dw * dy
        yy = KEEP * yy + part * dy * dy
        self.sums = (uu, uw, ww, uy, wy, yy)
        # Weights of the priors by their standard deviations, under noise of this size (Bayes).
        noise = SIGMA_PER_MEAN * self.scale
        if self.follows:
            noise = min(noise, self._spread())
        ridge = PRIOR_SAMPLES * max(uu / self.count, PRIOR_TOKENS * PRIOR_TOKENS)
        usual = max(self.prior, self.b) if self.follows else self.prior
        ridge = max(ridge, (noise / (PRIOR_SPREAD * usual)) ** 2)
        held = max(PRIOR_SAMPLES, (noise / CLOCK_SPREAD) ** 2)
        left, right = uu + ridge, ww + held
        up, down = uy + ridge * self.prior, wy + held
        determinant = left * right - uw * uw
        b = (up * right - down * uw) / determinant
        self.b = min(max(b, self.prior / self.range), self.prior * self.range)
        self.c = min(max((left * down - uw * up) / determinant, 0.0), 2.0)
        self.a = max(0.0, self.my - self.b * self.mu - self.c * self.mw)

    def _spread(self) -> float:
        """Return the standard deviation of all samples from the latest fit.

        Unlike ``scale``, it does not keep the errors of the fits before: of a prior that was wrong
        by much, these outlast some thirty samples and would hold the fit at it.
        """
        uu, uw, ww, uy, wy, yy = self.sums
        b, c = self.b, self.c
        rest = yy - 2.0 * (b * uy + c * wy) + b * b * uu + 2.0 * b * c * uw + c * c * ww
        return sqrt(max(rest, 0.0) / max(self.count - FITTED, 1.0))

    def rescale(self, factor: float) -> None:
        """Note that ``u`` is measured in units of which there are ``factor`` times as many."""
        uu, uw, ww, uy, wy, yy = self.sums
        self.sums = (uu * factor * factor, uw * factor, ww, uy * factor, wy, yy)
        self.mu *= factor
        b = self.b / factor
        self.b = min(max(b, self.prior / self.range), self.prior * self.range)


class Slope:
    """The slope of ``y`` over ``u`` and its standard error: least squares with forgetting.

    It has no prior, which would pull a deviating slope towards what it is compared with.
    """

    __slots__ = ("_count", "_mu", "_my", "_uu", "_uy", "_yy")

    def __init__(self) -> None:
        self._count = self._mu = self._my = 0.0
        self._uu = self._uy = self._yy = 0.0

    def add(self, u: float, y: float) -> None:
        """Take a sample."""
        before = KEEP * self._count
        self._count = before + 1.0
        du, dy = u - self._mu, y - self._my
        self._mu += du / self._count
        self._my += dy / self._count
        part = before / self._count
        self._uu = KEEP * self._uu + part * du * du
        self._uy = KEEP * self._uy + part * du * dy
        self._yy = KEEP * self._yy + part * dy * dy

    def rescale(self, factor: float) -> None:
        """Note that ``u`` is measured in units of which there are ``factor`` times as many."""
        self._mu *= factor
        self._uu *= factor * factor
        self._uy *= factor

    @property
    def value(self) -> float:
        """The slope; 0 before the samples vary."""
        return self._uy / self._uu if self._uu > 0.0 else 0.0

    @property
    def error(self) -> float:
        """Its standard error; infinite before there are enough samples that vary."""
        free = self._count - 2.0
        if free <= 0.0 or self._uu <= 0.0:
            return inf
        rest = max(self._yy - self._uy * self._uy / self._uu, 0.0)
        return sqrt(rest / free / self._uu)


class Rate:
    """Seconds per unit of work while there is work to do: a ratio of sums with forgetting.

    Args:
        prior: The seconds of a unit before there are samples; they weigh ``RATE_PRIOR`` units.
        most: Maximum factor between the value and its prior, either way.
    """

    __slots__ = ("_prior", "_range", "_seconds", "_work", "count")

    def __init__(self, prior: float, most: float) -> None:
        self._prior = prior
        self._range = most
        self._seconds = self._work = 0.0
        self.count = 0.0
        """Requests that it was learned from; earlier ones count less."""

    def add(self, work: float, seconds: float, requests: int) -> None:
        """Take the work that was done in so many seconds, and the number of its requests."""
        keep = KEEP**requests
        self._seconds = keep * self._seconds + seconds
        self._work = keep * self._work + work
        self.count = keep * self.count + requests

    def rescale(self, factor: float) -> None:
        """Note that work is measured in units of which there are ``factor`` times as many."""
        self._work *= factor

    @property
    def value(self) -> float:
        """The seconds of a unit."""
        found = (self._seconds + RATE_PRIOR * self._prior) / (self._work + RATE_PRIOR)
        return min(max(found, self._prior / self._range), self._prior * self._range)


class RegressionSample(NamedTuple):
    """A request as a sample of its replica's slowness."""

    expected_s: float
    """Expected seconds on the usual replica of capacity 1, without the work before it."""
    took_s: float
    """Seconds that it took without the work before it, times the replica's capacity."""
    noise_s: float
    """Usual deviation between the two, seconds."""


class Ratio:
    """Running median of the ratio between actual and expected times."""

    __slots__ = ("log",)

    def __init__(self) -> None:
        self.log = 0.0
        """Natural logarithm of the ratio; 0 initially."""

    def add(self, sample: RegressionSample) -> None:
        """Take a sample; the noisier it is, the shorter the step."""
        expected, took, noise = sample
        share = noise / expected
        step = STEP / (1.0 + share * share)
        self.log += step if log(max(took / expected, 1e-9)) > self.log else -step
