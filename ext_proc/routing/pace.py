"""Pace: how fast replicas work, learned from how long their requests took.

Rules:

1. A pool has one ``FleetPace``: what the pool's usual replica of capacity 1 needs per uncached
   token, after the prefill, and for a request without a prompt. Each of its replicas has one
   ``Pace``: how many times longer than that it needs (``slowness``).
2. Only requests that ended as they should teach anything, and only on the replica that had them
   from the start.
3. Nothing is believed at once: the fleet starts at cold defaults, a replica at its configured
   capacity, and a deviation of a replica under a third is held for noise.
4. Each sample costs constant time, and no sample moves an estimate by more than its bound: a
   request that hung for an hour counts as one that took long.

Model: ``seconds = tail + seconds_per_token * tokens + c * drain``, all divided by the replica's
capacity, where ``drain`` is what the virtual clock (``roster.Replica.busy_until``) said stood
before the request. The three coefficients are fitted by least squares with exponential
forgetting, held to the cold defaults as far as the noise leaves them unsure (ridge regression), and
residuals are clipped at three times their usual size (Huber 1964). The clock is one of the
unknowns, not a truth: when ``seconds_per_token`` is wrong so is the clock, and then ``c`` takes
up the error. Medians are tracked by stochastic approximation (Robbins and Monro 1951) in the
logarithm: one step up or down per sample.
"""

from __future__ import annotations

from math import exp, log
from typing import Final

COLD_TOKENS_PER_S: Final = 8_000.0
"""Prefill of an 8 B model on one modern GPU; it only has to be right within a few times."""
COLD_SERVICE_S: Final = 0.02
COLD_TAIL_S: Final = 2.5
"""Time after the prefill: some 350 output tokens."""
RANGE: Final = 100.0
"""Learned rates stay within this factor of the cold defaults."""
PRIOR_SAMPLES: Final = 6.0
PRIOR_SPREAD: Final = 1.0
"""How far the cold default of the speed may be off, as a share of it. Where answers take 100 times
as long as prefill, durations cannot tell the speed, and the default stays in force."""
CLOCK_SPREAD: Final = 0.5
"""The same for the clock's coefficient."""
SIGMA_PER_MEAN: Final = 1.25
"""Standard deviation per mean absolute deviation, for a normal distribution."""
PRIOR_TOKENS: Final = 512.0
"""Spread of prompt lengths below which a fleet's samples say little about its speed."""
MOST_DRAIN_S: Final = 60.0
"""A longer drain is noted as this: the clock is surely wrong, or the fleet lost."""
KEEP: Final = 1.0 - 1.0 / 512.0
"""What remains of an earlier sample's weight after each new one."""
USUAL_GAIN: Final = 1.0 / 16.0
"""How fast the fleet's usual follows: fast, as replicas are measured against it while the fit still
moves, and whoever was measured more often would seem to be the one that changed."""
MOST_OFF: Final = 3.0
GREEN: Final = 48
"""Samples of the fleet before which no replica is judged."""
SURE: Final = 8.0
"""Samples before which the usual size of residuals is unknown, so none is clipped."""
YOUNG: Final = 256
"""Samples after which only each fourth is taken, as the next ones change little."""
NOISE: Final = log(1.3)
MAX_LOG_SLOWNESS: Final = log(20.0)
STEPS_START: Final = 24.0
STEP_GAIN: Final = 1.2
STEP_LEAST: Final = 0.006
DELTA_SHARE: Final = 1.0 / 64.0
"""What one more request in flight costs, as a share of the time after the prefill. An engine step
of 6 ms grows by 0.35 ms per member of the batch (the reference engine of SMG's mock worker): with
batches of 40 that is a sixtieth of the time that decoding takes."""
EWMA_GAIN: Final = 0.2
PEAK_DECAY_S: Final = 10.0
"""Finagle's and Linkerd's decay of peak EWMA."""
COLD_LATENCY_S: Final = 0.03
"""Linkerd's first estimate: above nothing, so that a new replica does not look free."""


class _Median:
    """A running median of positive numbers, in constant space."""

    __slots__ = ("log", "seen")

    def __init__(self, start: float) -> None:
        self.log = log(start)
        self.seen = 0

    def add(self, value: float) -> None:
        self.seen += 1
        step = max(STEP_LEAST, STEP_GAIN / (STEPS_START + self.seen))
        self.log += step if log(max(value, 1e-9)) > self.log else -step

    def open_with(self, value: float) -> None:
        """Start at the first sample where nothing is known before it."""
        if self.seen:
            self.add(value)
        else:
            self.seen = 1
            self.log = log(max(value, 1e-9))


class _Fit:
    """``y = a + b * u + c * w`` by forgetful, clipped, ridge-held least squares."""

    __slots__ = ("a", "b", "c", "count", "mu", "mw", "my", "prior", "scale", "sums")

    def __init__(self, prior: float, tail: float) -> None:
        self.prior = prior
        self.a, self.b, self.c = tail, prior, 1.0
        self.count = self.mu = self.mw = self.my = 0.0
        self.sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        self.scale = 0.0

    def add(self, u: float, w: float, y: float) -> None:
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
        uu, uw, ww, uy, wy = self.sums
        uu = KEEP * uu + part * du * du
        uw = KEEP * uw + part * du * dw
        ww = KEEP * ww + part * dw * dw
        uy = KEEP * uy + part * du * dy
        wy = KEEP * wy + part * dw * dy
        self.sums = (uu, uw, ww, uy, wy)
        # The weight of a prior with a standard deviation, under noise of this size (Bayes).
        noise = SIGMA_PER_MEAN * self.scale
        ridge = PRIOR_SAMPLES * max(uu / self.count, PRIOR_TOKENS * PRIOR_TOKENS)
        ridge = max(ridge, (noise / (PRIOR_SPREAD * self.prior)) ** 2)
        held = max(PRIOR_SAMPLES, (noise / CLOCK_SPREAD) ** 2)
        left, right = uu + ridge, ww + held
        up, down = uy + ridge * self.prior, wy + held
        determinant = left * right - uw * uw
        b = (up * right - down * uw) / determinant
        self.b = min(max(b, self.prior / RANGE), self.prior * RANGE)
        self.c = min(max((left * down - uw * up) / determinant, 0.0), 2.0)
        self.a = max(0.0, self.my - self.b * self.mu - self.c * self.mw)


class FleetPace:
    """What a pool's usual replica of capacity 1 needs; see the module's rules.

    Args:
        tokens_per_s: The cold default of prefill.
        service_s: That of a request without a prompt.
    """

    __slots__ = ("_fit", "_seen", "_service", "_usual", "service_s")

    def __init__(
        self, tokens_per_s: float = COLD_TOKENS_PER_S, service_s: float = COLD_SERVICE_S
    ) -> None:
        self._fit = _Fit(1.0 / tokens_per_s, COLD_TAIL_S)
        self._service = _Median(service_s)
        self._usual = 0.0
        self._seen = 0
        self.service_s = service_s
        """Seconds by which one more request without a prompt delays the next."""

    def __repr__(self) -> str:
        rate = 1.0 / self.seconds_per_token
        return (
            f"<FleetPace tokens/s={rate:.0f} tail={self.tail_s:.3g} service={self.service_s:.3g}>"
        )

    def learn(
        self, capacity: float, tokens: float | None, drain_s: float, ahead: int, elapsed_s: float
    ) -> float | None:
        """Take note of a request on a replica of some capacity; the arguments are ``Pace.learn``'s.

        Returns:
            How long it took against what is usual in this fleet, 1 = as usual; ``None`` where
            the sample was not needed.
        """
        self._seen += 1
        if self._seen > YOUNG and self._seen & 3:
            return None
        seconds = elapsed_s * capacity
        if tokens is None:
            expected = self.service_s * (1 + ahead)
            self._service.open_with(seconds / (1 + ahead))
            low, high = COLD_SERVICE_S / RANGE, COLD_SERVICE_S * RANGE**2
            self.service_s = min(max(exp(self._service.log), low), high)
        else:
            fit, drain_s = self._fit, min(drain_s, MOST_DRAIN_S)
            expected = max(fit.a + fit.b * tokens, 1e-6)
            fit.add(tokens, drain_s * capacity, seconds)
            seconds = max(seconds - fit.c * drain_s * capacity, seconds / 20.0)
        deviation = log(seconds / expected)
        off = deviation - self._usual
        self._usual += USUAL_GAIN * min(max(off, -MOST_OFF), MOST_OFF)
        return exp(off) if self._seen > GREEN else None

    @property
    def seconds_per_token(self) -> float:
        """Return the seconds of prefill per uncached token."""
        return self._fit.b

    @property
    def tail_s(self) -> float:
        """Return the seconds a request takes after its prefill."""
        return self._fit.a

    @property
    def delta_s(self) -> float:
        """Return what one more request in flight costs, seconds."""
        return DELTA_SHARE * self._fit.a

    @property
    def mean_tokens(self) -> float:
        """Return the usual uncached tokens of a request."""
        return self._fit.mu


class Pace:
    """How one replica compares with its fleet, and how long its requests take.

    Args:
        fleet: The pool's pace.
        capacity: The replica's configured strength.
    """

    __slots__ = ("_capacity", "_fleet", "_peak_at", "_peak_s", "_ratio", "latency_s", "slowness")

    def __init__(self, fleet: FleetPace, capacity: float) -> None:
        self._fleet = fleet
        self._capacity = capacity
        self._ratio = _Median(1.0)
        self.slowness = 1.0 / capacity
        """How many times longer than the usual replica of capacity 1 it needs."""
        self.latency_s: float | None = None
        """Mean duration of recent requests (EWMA); ``None`` = none yet."""
        self._peak_s = COLD_LATENCY_S
        self._peak_at = 0.0

    def __repr__(self) -> str:
        return f"<Pace slowness={self.slowness:.2f}>"

    def adapt(self, capacity: float) -> None:
        """Take a new configured strength; what was learned beside it stays."""
        if capacity != self._capacity:
            self._capacity = capacity
            self._weigh()

    def peak_s(self, now: float) -> float:
        """Return the peak EWMA of its requests' durations.

        It jumps to a longer one at once and decays to shorter ones (Finagle's ``PeakEwma``).
        """
        return self._peak_s * exp((self._peak_at - now) / PEAK_DECAY_S)

    def learn(
        self, tokens: float | None, drain_s: float, ahead: int, elapsed_s: float, now: float
    ) -> None:
        """Take note of a request that ended as it should.

        Args:
            tokens: Its uncached prompt tokens; ``None`` where it had no prompt.
            drain_s: What the clock said stood before it.
            ahead: Requests that were in flight there when it came.
            elapsed_s: From dispatch to its end.
            now: Monotonic seconds.
        """
        elapsed_s = max(elapsed_s, 1e-6)
        known = self.latency_s
        self.latency_s = elapsed_s if known is None else known + EWMA_GAIN * (elapsed_s - known)
        kept = exp((self._peak_at - now) / PEAK_DECAY_S)
        peak = self._peak_s * kept
        self._peak_s = max(elapsed_s, peak + elapsed_s * (1.0 - kept) if peak > elapsed_s else 0.0)
        self._peak_at = now
        ratio = self._fleet.learn(self._capacity, tokens, drain_s, ahead, elapsed_s)
        if ratio is not None:
            self._ratio.add(ratio)
            self._weigh()

    def _weigh(self) -> None:
        deviation = self._ratio.log
        if abs(deviation) < NOISE:
            self.slowness = 1.0 / self._capacity
        else:
            bounded = min(max(deviation, -MAX_LOG_SLOWNESS), MAX_LOG_SLOWNESS)
            self.slowness = exp(bounded) / self._capacity
