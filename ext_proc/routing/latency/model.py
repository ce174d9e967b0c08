"""Latency model: the speed of replicas, learned from first bytes and durations of requests.

Rules of the estimators:

1. A sample costs constant time and moves an estimate by a bounded amount: a request that hung for
   an hour counts as a long one.
2. The weight of earlier samples decays exponentially, so that estimates follow changes.
3. A coefficient that the samples do not determine, because of noise or too little spread, stays
   near its prior.

An ``Estimate`` is a mean of logarithms, so that tenfold deviations upwards and downwards count
alike. Each step is clipped (Huber, "Robust Estimation of a Location Parameter", 1964): one answer
of a minute among many of 50 ms moves the estimate by a fifth, not by minutes.

Rules of the model:

1. Each pool has one ``FleetLatencyModel``: the time that the pool's usual replica of capacity 1
   needs per uncached token, after the prefill, and for a request without a prompt. Each replica has
   one ``LatencyModel`` per pool: how many times longer than that it needs (``slowness``).
2. Only requests that ended normally are samples, and only for the replica that had them from the
   start.
3. Estimates start from priors: the fleet's from cold defaults, a replica's from its configured
   capacity. A replica's deviation of less than about a third is treated as noise.
4. The prefill speed is learned from the first bytes of streamed answers, if the proxy reports them.
   If it does not, or if engines send their headers before they have read the prompt, which shows as
   an impossibly high speed, the first source below that has samples is used (``progress``):

   * first tokens that engines count, and the seconds until them;
   * the work that leaves engines' queues while these are not empty;
   * durations.

   The default stays until there are ``SURE`` samples: of fewer the noise is unknown, and clocks of
   long prompts would keep the error. Durations also wait while the first few first bytes come.
5. A slower replica from which nothing was learned for ``RETRY_S`` counts as a usual one until its
   next sample. Else an idle fleet would send it nothing for ever after it was slow for a minute.
6. Where durations are all that is known of prompts, a replica deviates only as far as two measures
   agree: its median duration, and by how much longer prompts take longer on it. A replica that
   happens to have the long answers has the first only, and it is not slow.

Model: ``seconds = fixed + seconds_per_token * tokens + c * drain``, all divided by the replica's
capacity, where ``drain`` is the work before the request by the virtual clock
(``Replica.busy_until``). The three coefficients are fitted by least squares with exponential
forgetting and regularised towards the cold defaults in proportion to the noise (ridge regression).
Residuals are clipped at three times their usual size (Huber 1964). The clock has a coefficient of
its own because it is only an estimate: a wrong ``seconds_per_token`` makes the clock wrong too, and
``c`` then absorbs the error. Durations have a second weakness, for which they are weighted less:
longer prompts may have shorter answers, so that long prompts seem to take no time at all.

A replica's slowness is the median ratio of the time that its requests took to the time that the
model expects of the usual replica. Medians are tracked by stochastic approximation (Robbins and
Monro 1951) in the logarithm: one step up or down per sample, shorter if the sample is mostly noise.
"""

from __future__ import annotations

from collections import deque
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


COLD_TOKENS_PER_S: Final = 8_000.0
"""Prefill of an 8 B model on one modern GPU; it needs to be right within a few times only."""
COLD_SERVICE_S: Final = 0.02
COLD_TAIL_S: Final = 2.5
"""Time after the prefill: about 350 output tokens."""
RANGE: Final = 100.0
"""Learned rates stay within this factor of the cold defaults."""
GUESS_RANGE: Final = 8.0
"""The same for a speed that is learned from durations only."""
TOO_FAST: Final = 20.0
"""Factor above the cold default from which on first bytes cannot have waited for the prefill."""
MOST_UNREPORTED: Final = 1_000
"""Prompts that ended since the proxy last reported a first byte, from which on durations are used
again."""
MOST_DRAIN_S: Final = 60.0
"""Upper bound of a sample's drain; a longer one means that the clock is wrong or the fleet is
overloaded."""
IN_FLIGHT_TOKENS: Final = 64.0
"""Cost of one more request in flight, in tokens of prefill. In one step of an engine a running
request costs as much as about 3 tokens (0.35 ms against 8,000 per second in SMG's mock worker), so
this is its cost over about 20 steps. A much larger value moves prompts away from idle replicas, a
much smaller one lets answers pile up where prefixes are; between 16 and 160 little changes (fitted
on the first half of the conversation trace and on generated sessions)."""
SURE_WINDOWS: Final = 32.0
"""The same as ``SURE`` for what engines count between two pages. The edges of pages are not sharp:
with 8, wrong speeds at the start made the slowest sessions of two drawn fleets a third slower."""
MOST_CHANGES: Final = 16
"""Changes of the scale of text that a request may outlast for anything to be learned from it."""
GREEN: Final = 48
"""Samples of the fleet before which no replica's slowness is estimated."""
UNSURE: Final = 20.0
"""How many times as long as expected a pending prompt may take before there are so many. With text
of 0.25 bytes per token, default speed and scale make each replica with an answer look 16 times too
slow, so that prompts gather elsewhere."""
YOUNG: Final = 256
"""Samples after which only every fourth is taken, because further ones change little."""
MAX_LOG_SLOWNESS: Final = log(20.0)
NOISE: Final = log(1.35)
"""Deviation below which a replica counts as neither slower nor faster: about twenty requests with
the same error may cause it, and a correct detection gains less than a false alarm costs."""
RETRY_S: Final = 30.0
"""About one request of a slower replica in this time costs an idle fleet little."""
SUSPECT: Final = NOISE / 4.0
"""Deviation from which on a replica's own durations are looked at; most never reach it."""
SIGNIFICANT: Final = 3.0
"""Standard errors by which a replica's cost of a token must differ from its fleet's (model, rule
6)."""
SERVICE_NOISE: Final = 0.5
"""Usual deviation of the duration of a request without a prompt, as a share of its expectation."""
EWMA_GAIN: Final = 0.2
COLD_LATENCY_S: Final = 0.03
"""Linkerd's initial estimate: above 0, so that a new replica does not look free."""


class FleetLatencyModel:
    """The times of a pool's usual replica of capacity 1; see the module's rules.

    Args:
        tokens_per_s: Cold default of the prefill speed.
        service_s: Cold default of the duration of a request without a prompt, seconds.
    """

    __slots__ = (
        "_answers",
        "_changes",
        "_counted",
        "_drained",
        "_durations",
        "_first_bytes",
        "_seen",
        "_service",
        "_unreported",
        "_usual",
        "_windows",
        "after",
        "reported_until",
        "seconds_per_token",
        "service_s",
        "slope",
    )

    def __init__(
        self, tokens_per_s: float = COLD_TOKENS_PER_S, service_s: float = COLD_SERVICE_S
    ) -> None:
        self._answers = Fit(1.0 / tokens_per_s, 0.0, RANGE, follows=True)
        self._counted = Fit(1.0 / tokens_per_s, 0.0, RANGE, follows=True)
        self._drained = Rate(1.0 / tokens_per_s, RANGE)
        self._durations = Fit(1.0 / tokens_per_s, COLD_TAIL_S, GUESS_RANGE)
        self.slope = Slope()
        """Seconds by which a further token prolongs a request, by durations."""
        self._service = Median(service_s)
        self._usual = Ratio()
        self._seen = 0
        self._first_bytes = 0
        self._windows = 0
        self._unreported = 0
        self.after = 0
        """The latest ticket whose tokens are of an earlier scale (``in_force``)."""
        self._changes: deque[tuple[int, float]] = deque(maxlen=MOST_CHANGES)
        """The latest changes of the scale: the last ticket before, and the new tokens of an old
        one."""
        self.reported_until = float("-inf")
        """When the latest request with a known first byte was sent, monotonic seconds."""
        self.seconds_per_token = 1.0 / tokens_per_s
        """Seconds of prefill per uncached token."""
        self.service_s = service_s
        """Seconds by which one more request without a prompt delays the next one."""

    def __repr__(self) -> str:
        rate = 1.0 / self.seconds_per_token
        speeds = f"tokens/s={rate:.0f} tail={self.tail_s:.3g} service={self.service_s:.3g}"
        return f"<FleetLatencyModel {speeds}>"

    def learn(
        self,
        capacity: float,
        tokens: float | None,
        drain_s: float,
        ahead: int,
        elapsed_s: float,
        *,
        wanted: bool = False,
    ) -> RegressionSample | None:
        """Learn from a request that ended; the arguments are those of ``LatencyModel.learn``.

        A ``wanted`` one is taken also where only every fourth is.

        Returns:
            A sample for the replica's slowness, ``None`` if there is none.
        """
        self._seen += 1
        self._unreported += tokens is not None
        if self._seen > YOUNG and self._seen & 3 and not wanted:
            return None
        if tokens is not None:
            sample = _fitted(self._durations, capacity, tokens, drain_s, elapsed_s)
            if self.knows_first_bytes:
                return None
            self.slope.add(tokens, self.without_drain(drain_s, elapsed_s) * capacity)
            coming = 0.0 < self._answers.count < SURE and self._unreported < GREEN
            if self._durations.count >= SURE and not coming and not self.knows_progress:
                self.seconds_per_token = self._durations.b
        else:
            seconds = elapsed_s * capacity
            expected = self.service_s * (1 + ahead)
            self._service.open_with(seconds / (1 + ahead))
            low, high = COLD_SERVICE_S / RANGE, COLD_SERVICE_S * RANGE**2
            self.service_s = min(max(exp(self._service.log), low), high)
            sample = RegressionSample(expected, seconds, SERVICE_NOISE * expected)
        return self._against_usual(sample, self._seen)

    def answered(
        self,
        capacity: float,
        tokens: float,
        drain_s: float,
        seconds: float,
        *,
        wanted: bool = False,
    ) -> RegressionSample | None:
        """Learn from a first byte; the arguments are those of ``LatencyModel.answered``.

        A ``wanted`` one is taken also where only every fourth is.

        Returns:
            A sample for the replica's slowness, ``None`` if there is none.
        """
        self._first_bytes += 1
        self._unreported = 0
        if self._first_bytes > YOUNG and self._first_bytes & 3 and not wanted:
            return None
        sample = _fitted(self._answers, capacity, tokens, drain_s, seconds)
        if not self.uses_first_bytes:
            return None
        self.seconds_per_token = self._answers.b
        return self._against_usual(sample, self._first_bytes)

    def counted(
        self, capacity: float, tokens: float, drain_s: float, seconds: float
    ) -> RegressionSample | None:
        """Learn from prompts whose first tokens an engine counted; all arguments are means.

        Returns:
            A sample for the replica's slowness, ``None`` if there is none.
        """
        self._windows += 1
        sample = _fitted(self._counted, capacity, tokens, drain_s, seconds)
        if self.uses_first_bytes or not self.knows_first_bytes:
            return None
        self.seconds_per_token = self._counted.b
        return self._against_usual(sample, self._windows)

    def drained(self, capacity: float, tokens: float, seconds: float, prompts: int) -> None:
        """Learn from a replica whose queue was not empty.

        Args:
            capacity: Its configured capacity.
            tokens: Uncached tokens of all prompts that left the queue.
            seconds: The time in which they did.
            prompts: The number of those that we sent.
        """
        self._drained.add(tokens, seconds * capacity, prompts)
        if self.knows_progress and not self.knows_first_bytes:
            self.seconds_per_token = self._drained.value

    def in_force(self, ticket_id: int, tokens: float) -> float | None:
        """Return the tokens of a request in the scale in force, ``None`` if it is too old.

        Args:
            ticket_id: Its ticket.
            tokens: Its tokens in the scale that was in force when it was sent.
        """
        if ticket_id > self.after:
            return tokens
        for last, factor in self._changes:
            if ticket_id <= last:
                tokens *= factor
        oldest = len(self._changes) == MOST_CHANGES and ticket_id <= self._changes[0][0]
        return None if oldest else tokens

    def rescale(self, factor: float, ticket_id: int) -> None:
        """Note that prompts are taken to have ``factor`` times as many tokens from now on.

        What was learned is kept: a token takes as much less. A default stays, as its tokens are
        true ones.

        Args:
            factor: New tokens for each old one.
            ticket_id: The latest ticket whose tokens are old ones.
        """
        self.after = ticket_id
        self._changes.append((ticket_id, factor))
        for each in (self._answers, self._counted, self._drained, self._durations):
            each.rescale(factor)
        self.slope.rescale(factor)
        if self.uses_first_bytes:
            self.seconds_per_token = self._answers.b
        elif self.knows_first_bytes:
            self.seconds_per_token = self._counted.b
        elif self.knows_progress:
            self.seconds_per_token = self._drained.value
        elif self._durations.count >= SURE:
            self.seconds_per_token = self._durations.b

    def note_first_byte(self, sent_at: float) -> None:
        """Note that the first byte of a request sent at ``sent_at`` is known."""
        self.reported_until = max(self.reported_until, sent_at)

    def _against_usual(self, sample: RegressionSample, number: int) -> RegressionSample | None:
        """Remove the deviation that all replicas have in common, e.g. of an unfinished fit."""
        self._usual.add(sample)
        if number <= GREEN:
            return None
        expected, took, noise = sample
        return RegressionSample(expected * exp(self._usual.log), took, noise)

    @property
    def uses_first_bytes(self) -> bool:
        """Whether the speed is learned from first bytes that the proxy reports."""
        answers = self._answers
        reported = answers.count >= SURE and self._unreported < MOST_UNREPORTED
        return reported and answers.b * TOO_FAST > answers.prior

    @property
    def judges(self) -> bool:
        """Whether enough is known of the speed to tell which prompt is late."""
        return self._first_bytes > GREEN

    @property
    def knows_first_bytes(self) -> bool:
        """Whether the speed is learned from these, or from first tokens that engines count."""
        return self.uses_first_bytes or self._counted.count >= SURE_WINDOWS

    @property
    def knows_progress(self) -> bool:
        """Whether it is learned from these, or from the engines' queues; else from durations."""
        return self.knows_first_bytes or self._drained.count >= SURE

    @property
    def source(self) -> str:
        """What the speed is learned from."""
        if self.uses_first_bytes:
            return "first-bytes"
        if self.knows_progress:
            return "engines" if self.knows_first_bytes else "queues"
        return "durations" if self._durations.count else "default"

    def describe(self) -> dict[str, object]:
        """Return the estimates and their source, ready for JSON."""
        return {
            "tokens_per_s": round(1.0 / self.seconds_per_token, 1),
            "from": self.source,
            "first_bytes": self._first_bytes,
            "tail_s": round(self.tail_s, 4),
            "service_s": round(self.service_s, 6),
        }

    def without_drain(self, drain_s: float, elapsed_s: float) -> float:
        """Return the seconds of a request without those of the work before it."""
        return elapsed_s - self._durations.c * min(drain_s, MOST_DRAIN_S)

    @property
    def tail_s(self) -> float:
        """Seconds that a request takes after its prefill."""
        return self._durations.a

    @property
    def noise_s(self) -> float:
        """Usual deviation of first bytes from their expected time, seconds."""
        return self._answers.scale

    def expects(self, tokens: float) -> float | None:
        """Return the usual replica's seconds to the first byte, ``None`` if not yet learned."""
        return self._answers.a + self._answers.b * tokens if self.uses_first_bytes else None

    @property
    def delta_s(self) -> float:
        """Cost of one more request in flight, seconds."""
        return IN_FLIGHT_TOKENS * self.seconds_per_token

    @property
    def mean_tokens(self) -> float:
        """Mean uncached tokens of a request."""
        return self._durations.mu


def _fitted(
    fit: Fit, capacity: float, tokens: float, drain_s: float, elapsed_s: float
) -> RegressionSample:
    """Add a request to a fit; return it as a sample against the fit's previous expectation."""
    drain, seconds = min(drain_s, MOST_DRAIN_S) * capacity, elapsed_s * capacity
    expected = max(fit.a + fit.b * tokens, 1e-6)
    took = max(seconds - fit.c * drain, 0.0)
    fit.add(tokens, drain, seconds)
    return RegressionSample(expected, took, SIGMA_PER_MEAN * fit.scale)


class LatencyModel:
    """The slowness of one replica relative to its fleet, and the latency of its requests.

    Args:
        fleet: The pool's fleet latency model.
        capacity: The replica's configured capacity.
    """

    __slots__ = (
        "_capacity",
        "_fleet",
        "_learned",
        "_learned_at",
        "_ratio",
        "_retried",
        "_slope",
        "latency_s",
        "peak",
        "slowness",
    )

    def __init__(self, fleet: FleetLatencyModel, capacity: float) -> None:
        self._fleet = fleet
        self._capacity = capacity
        self._ratio = Ratio()
        self._learned = self._retried = False
        """Whether there was a sample since the last sweep; whether the next one is awaited."""
        self._learned_at = 0.0
        """The last sweep before which there was one, monotonic seconds."""
        self._slope: Slope | None = None
        """Its own cost of a token by durations, while these are the source (model, rule 6)."""
        self.slowness = 1.0 / capacity
        """Factor by which it takes longer than the usual replica of capacity 1."""
        self.latency_s: float | None = None
        """Mean duration of recent requests (EWMA), seconds; ``None`` = none yet."""
        self.peak = Peak()
        """Peak of the durations."""

    def __repr__(self) -> str:
        return f"<LatencyModel slowness={self.slowness:.2f}>"

    def adapt(self, capacity: float) -> None:
        """Set a new configured capacity; the learned deviation is kept."""
        if capacity != self._capacity:
            self._capacity = capacity
            self._weigh()

    def rescale(self, factor: float) -> None:
        """Note that prompts are taken to have ``factor`` times as many tokens from now on."""
        if self._slope is not None:
            self._slope.rescale(factor)

    def learn(
        self, tokens: float | None, drain_s: float, ahead: int, elapsed_s: float, now: float
    ) -> None:
        """Learn from a request that ended normally.

        Args:
            tokens: Its uncached prompt tokens; ``None`` if it had no prompt.
            drain_s: Seconds of work before it, by the virtual clock.
            ahead: Requests in flight on the replica when it was sent.
            elapsed_s: Seconds from dispatch to its end.
            now: Monotonic seconds.
        """
        elapsed_s = max(elapsed_s, 1e-6)
        known = self.latency_s
        self.latency_s = elapsed_s if known is None else known + EWMA_GAIN * (elapsed_s - known)
        self.peak.put(elapsed_s, now)
        sample = self._fleet.learn(
            self._capacity, tokens, drain_s, ahead, elapsed_s, wanted=self._retried
        )
        suspected = self._slope is not None or abs(self._ratio.log) > SUSPECT
        if suspected and tokens is not None and not self._fleet.knows_first_bytes:
            if self._slope is None:
                self._slope = Slope()
            self._slope.add(tokens, self._fleet.without_drain(drain_s, elapsed_s) * self._capacity)
        self._compare(sample)

    @property
    def noise_s(self) -> float:
        """Usual deviation of first bytes from their expected time, seconds."""
        return self._fleet.noise_s * self.slowness

    def expects(self, tokens: float) -> float | None:
        """Return the replica's seconds to the first byte of a prompt, ``None`` if not learned."""
        usual = self._fleet.expects(tokens)
        return None if usual is None else usual * self.slowness

    def answered(self, tokens: float, drain_s: float, seconds: float) -> None:
        """Learn from the first byte of a streamed answer to a prompt.

        Args:
            tokens: The prompt's uncached tokens.
            drain_s: Seconds of work before it, by the virtual clock.
            seconds: Seconds from dispatch to the first byte.
        """
        seconds = max(seconds, 1e-6)
        self._compare(
            self._fleet.answered(self._capacity, tokens, drain_s, seconds, wanted=self._retried)
        )

    def counted(self, tokens: float, drain_s: float, seconds: float) -> None:
        """Learn from prompts whose first tokens the engine counted; all arguments are means."""
        self._compare(self._fleet.counted(self._capacity, tokens, drain_s, max(seconds, 1e-6)))

    def drained(self, tokens: float, seconds: float, prompts: int) -> None:
        """Learn from a queue that was not empty; see ``FleetLatencyModel.drained``."""
        self._fleet.drained(self._capacity, tokens, seconds, prompts)

    def sweep(self, now: float) -> None:
        """Let a slower replica be tried again (rule 5 of the model); call about once a second.

        Args:
            now: Monotonic seconds.
        """
        if self._learned:
            self._learned, self._learned_at = False, now
        elif self.slowness * self._capacity > 1.0 and now - self._learned_at >= RETRY_S:
            self._retried, self.slowness = True, 1.0 / self._capacity

    def _compare(self, sample: RegressionSample | None) -> None:
        if sample is not None:
            self._learned, self._retried = True, False
            self._ratio.add(sample)
            self._weigh()

    def _weigh(self) -> None:
        deviation = self._ratio.log
        if self._slope is not None and abs(deviation) >= NOISE:
            deviation = self._agreed(deviation, self._slope)
        if abs(deviation) < NOISE:
            self.slowness = 1.0 / self._capacity
        else:
            bounded = min(max(deviation, -MAX_LOG_SLOWNESS), MAX_LOG_SLOWNESS)
            self.slowness = exp(bounded) / self._capacity

    def _agreed(self, deviation: float, own: Slope) -> float:
        """Return a deviation of durations as far as a token's cost confirms it (model, rule 6)."""
        if self._fleet.knows_first_bytes:
            self._slope = None
            return deviation
        usual = self._fleet.slope.value
        if min(own.value, usual) <= 0.0 or abs(own.value - usual) < SIGNIFICANT * own.error:
            return 0.0
        confirmed = log(own.value / usual)
        if deviation > 0.0:
            return max(0.0, min(deviation, confirmed))
        return min(0.0, max(deviation, confirmed))
