"""Pace: how fast replicas work, learned from when their answers began and how long they took.

Rules:

1. A pool has one ``FleetLatencyModel``: what the pool's usual replica of capacity 1 needs per
   uncached token, after the prefill, and for a request without a prompt. Each of its replicas has
   one ``LatencyModel``: how many times longer than that it needs (``slowness``).
2. Only requests that ended as they should teach anything, and only on the replica that had them
   from the start.
3. Nothing is believed at once: the fleet starts at cold defaults, a replica at its configured
   capacity, and a deviation of a replica under a third is held for noise.
4. Each sample costs constant time, and no sample moves an estimate by more than its bound: a
   request that hung for an hour counts as one that took long.
5. The speed of prefill is learned from the first bytes of streamed answers, where the proxy tells
   of them. Durations stand in for them where it does not, and where engines send their headers
   before they have read the prompt, which shows as a speed that no engine has.

Model: ``seconds = fixed + seconds_per_token * tokens + c * drain``, all divided by the replica's
capacity, where ``drain`` is what the virtual clock (``pool state.Replica.busy_until``) said stood
before the request. The three coefficients are fitted by least squares with exponential
forgetting, held to the cold defaults as far as the noise leaves them unsure (ridge regression), and
residuals are clipped at three times their usual size (Huber 1964). The clock is one of the
unknowns, not a truth: when ``seconds_per_token`` is wrong so is the clock, and then ``c`` takes
up the error. Durations have a second weakness, which is why they are believed less: who asks
more may be answered less, and then long prompts seem to take no time at all.

A replica's slowness is the median of what its requests took over what the model expects of the
usual replica. Medians are tracked by stochastic approximation (Robbins and Monro 1951) in the
logarithm: a step up or down per sample, short where the sample is mostly noise.
"""

from __future__ import annotations

from math import exp, log
from typing import Final

from ext_proc.routing.latency.estimates import Peak
from ext_proc.routing.latency.regression import (
    SIGMA_PER_MEAN,
    SURE,
    Fit,
    Median,
    Ratio,
    RegressionSample,
)

COLD_TOKENS_PER_S: Final = 8_000.0
"""Prefill of an 8 B model on one modern GPU; it only has to be right within a few times."""
COLD_SERVICE_S: Final = 0.02
COLD_TAIL_S: Final = 2.5
"""Time after the prefill: some 350 output tokens."""
RANGE: Final = 100.0
"""Learned rates stay within this factor of the cold defaults."""
GUESS_RANGE: Final = 8.0
"""The same for a speed that only durations tell."""
TOO_FAST: Final = 20.0
"""First bytes that come so many times faster than the cold default were not waited for."""
MOST_UNHEARD: Final = 1_000
"""Prompts answered since the proxy last told of a first byte after which it does not tell any more,
and durations count again."""
MOST_DRAIN_S: Final = 60.0
"""A longer drain is noted as this: the clock is surely wrong, or the fleet lost."""
IN_FLIGHT_TOKENS: Final = 64.0
"""What one more request in flight costs, in tokens of prefill. In the step of an engine a running
request weighs as much as some 3 of them (0.35 ms against 8,000 per second in SMG's mock worker),
so this is what it adds to some 20 steps. Far more would move prompts away from idle replicas, far
less would let answers pile up where prefixes are: between 16 and 160 little changes (fitted on
the first half of the conversation trace and on generated sessions)."""
GREEN: Final = 48
"""Samples of the fleet before which no replica is judged."""
YOUNG: Final = 256
"""Samples after which only each fourth is taken, as the next ones change little."""
MAX_LOG_SLOWNESS: Final = log(20.0)
NOISE: Final = log(1.35)
"""A replica is not called slower or faster for less: some twenty requests that erred together may
look like it, and what it would gain is less than what a false alarm costs."""
SERVICE_NOISE: Final = 0.5
"""Usual deviation of a request without a prompt, as a share of what it takes."""
EWMA_GAIN: Final = 0.2
COLD_LATENCY_S: Final = 0.03
"""Linkerd's first estimate: above nothing, so that a new replica does not look free."""


class FleetLatencyModel:
    """What a pool's usual replica of capacity 1 needs; see the module's rules.

    Args:
        tokens_per_s: The cold default of prefill.
        service_s: That of a request without a prompt.
    """

    __slots__ = (
        "_answers",
        "_durations",
        "_heard",
        "_seen",
        "_service",
        "_unheard",
        "_usual",
        "heard_to",
        "seconds_per_token",
        "service_s",
    )

    def __init__(
        self, tokens_per_s: float = COLD_TOKENS_PER_S, service_s: float = COLD_SERVICE_S
    ) -> None:
        self._answers = Fit(1.0 / tokens_per_s, 0.0, RANGE)
        self._durations = Fit(1.0 / tokens_per_s, COLD_TAIL_S, GUESS_RANGE)
        self._service = Median(service_s)
        self._usual = Ratio()
        self._seen = 0
        self._heard = 0
        self._unheard = 0
        self.heard_to = float("-inf")
        """When the latest request was sent whose answer's beginning is known, monotonic seconds."""
        self.seconds_per_token = 1.0 / tokens_per_s
        """Seconds of prefill per uncached token."""
        self.service_s = service_s
        """Seconds by which one more request without a prompt delays the next."""

    def __repr__(self) -> str:
        rate = 1.0 / self.seconds_per_token
        speeds = f"tokens/s={rate:.0f} tail={self.tail_s:.3g} service={self.service_s:.3g}"
        return f"<FleetLatencyModel {speeds}>"

    def learn(
        self, capacity: float, tokens: float | None, drain_s: float, ahead: int, elapsed_s: float
    ) -> RegressionSample | None:
        """Learn from a request on a replica of some capacity (``LatencyModel.learn``).

        Returns:
            What it says of its replica, ``None`` where that is nothing.
        """
        self._seen += 1
        self._unheard += tokens is not None
        if self._seen > YOUNG and self._seen & 3:
            return None
        if tokens is not None:
            sample = _fitted(self._durations, capacity, tokens, drain_s, elapsed_s)
            if self.hears:
                return None
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
        self, capacity: float, tokens: float, drain_s: float, seconds: float
    ) -> RegressionSample | None:
        """Take note of when an answer began; the arguments are ``LatencyModel.answered``'s.

        Returns:
            What it says of its replica, ``None`` where that is nothing.
        """
        self._heard += 1
        self._unheard = 0
        if self._heard > YOUNG and self._heard & 3:
            return None
        sample = _fitted(self._answers, capacity, tokens, drain_s, seconds)
        if not self.hears:
            return None
        self.seconds_per_token = self._answers.b
        return self._against_usual(sample, self._heard)

    def heard(self, sent_at: float) -> None:
        """Note that a request's first byte is known, and when the request was sent."""
        self.heard_to = max(self.heard_to, sent_at)

    def _against_usual(self, sample: RegressionSample, number: int) -> RegressionSample | None:
        """Take out what all replicas have in common, e.g. a fit that is still on its way."""
        self._usual.add(sample)
        if number <= GREEN:
            return None
        expected, took, noise = sample
        return RegressionSample(expected * exp(self._usual.log), took, noise)

    @property
    def hears(self) -> bool:
        """Return whether the beginnings of answers tell the speed."""
        answers = self._answers
        told = answers.count >= SURE and self._unheard < MOST_UNHEARD
        return told and answers.b * TOO_FAST > answers.prior

    def describe(self) -> dict[str, object]:
        """Return what is learned and from what, ready for JSON."""
        durations = "durations" if self._durations.count else "default"
        return {
            "tokens_per_s": round(1.0 / self.seconds_per_token, 1),
            "from": "first-bytes" if self.hears else durations,
            "first_bytes": self._heard,
            "tail_s": round(self.tail_s, 4),
            "service_s": round(self.service_s, 6),
        }

    @property
    def tail_s(self) -> float:
        """Return the seconds a request takes after its prefill."""
        return self._durations.a

    @property
    def noise_s(self) -> float:
        """Return by how much first bytes usually miss what is expected of them, seconds."""
        return self._answers.scale

    def expects(self, tokens: float) -> float | None:
        """Return what the usual replica needs for a prompt; ``None`` where no first bytes tell."""
        return self._answers.a + self._answers.b * tokens if self.hears else None

    @property
    def delta_s(self) -> float:
        """Return what one more request in flight costs, seconds."""
        return IN_FLIGHT_TOKENS * self.seconds_per_token

    @property
    def mean_tokens(self) -> float:
        """Return the usual uncached tokens of a request."""
        return self._durations.mu


def _fitted(
    fit: Fit, capacity: float, tokens: float, drain_s: float, elapsed_s: float
) -> RegressionSample:
    """Add a request to a fit; return it as it was before against what was expected."""
    drain, seconds = min(drain_s, MOST_DRAIN_S) * capacity, elapsed_s * capacity
    expected = max(fit.a + fit.b * tokens, 1e-6)
    took = max(seconds - fit.c * drain, 0.0)
    fit.add(tokens, drain, seconds)
    return RegressionSample(expected, took, SIGMA_PER_MEAN * fit.scale)


class LatencyModel:
    """How one replica compares with its fleet, and how long its requests take.

    Args:
        fleet: The pool's pace.
        capacity: The replica's configured strength.
    """

    __slots__ = ("_capacity", "_fleet", "_ratio", "latency_s", "peak", "slowness")

    def __init__(self, fleet: FleetLatencyModel, capacity: float) -> None:
        self._fleet = fleet
        self._capacity = capacity
        self._ratio = Ratio()
        self.slowness = 1.0 / capacity
        """How many times longer than the usual replica of capacity 1 it needs."""
        self.latency_s: float | None = None
        """Mean duration of recent requests (EWMA); ``None`` = none yet."""
        self.peak = Peak()
        """Of the durations."""

    def __repr__(self) -> str:
        return f"<LatencyModel slowness={self.slowness:.2f}>"

    def adapt(self, capacity: float) -> None:
        """Take a new configured strength; what was learned beside it stays."""
        if capacity != self._capacity:
            self._capacity = capacity
            self._weigh()

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
        self.peak.put(elapsed_s, now)
        self._compare(self._fleet.learn(self._capacity, tokens, drain_s, ahead, elapsed_s))

    @property
    def noise_s(self) -> float:
        """Return by how much first bytes usually miss what is expected of them, seconds."""
        return self._fleet.noise_s * self.slowness

    def expects(self, tokens: float) -> float | None:
        """Return what it needs for a prompt, seconds; ``None`` where no first bytes tell."""
        usual = self._fleet.expects(tokens)
        return None if usual is None else usual * self.slowness

    def answered(self, tokens: float, drain_s: float, seconds: float) -> None:
        """Take note of when the streamed answer to a prompt began.

        Args:
            tokens: The prompt's uncached tokens.
            drain_s: What the clock said stood before it.
            seconds: From dispatch to the first byte.
        """
        self._compare(self._fleet.answered(self._capacity, tokens, drain_s, max(seconds, 1e-6)))

    def _compare(self, sample: RegressionSample | None) -> None:
        if sample is not None:
            self._ratio.add(sample)
            self._weigh()

    def _weigh(self) -> None:
        deviation = self._ratio.log
        if abs(deviation) < NOISE:
            self.slowness = 1.0 / self._capacity
        else:
            bounded = min(max(deviation, -MAX_LOG_SLOWNESS), MAX_LOG_SLOWNESS)
            self.slowness = exp(bounded) / self._capacity
