"""Latency model: the speed of replicas, learned from first bytes and durations of requests.

Rules:

1. Each pool has one ``FleetLatencyModel``: the time that the pool's usual replica of capacity 1
   needs per uncached token, after the prefill, and for a request without a prompt. Each replica has
   one ``LatencyModel`` per pool: how many times longer than that it needs (``slowness``).
2. Only requests that ended normally are samples, and only for the replica that had them from the
   start.
3. Estimates start from priors: the fleet's from cold defaults, a replica's from its configured
   capacity. A replica's deviation of less than about a third is treated as noise.
4. Each sample costs constant time and moves an estimate by a bounded amount: a request that hung
   for an hour counts as a long one.
5. The prefill speed is learned from the first bytes of streamed answers, if the proxy reports them.
   If it does not, or if engines send their headers before they have read the prompt, which shows as
   an impossibly high speed, the first source below that has samples is used (``progress``):

   * first tokens that engines count, and the seconds until them;
   * the work that leaves engines' queues while these are not empty;
   * durations.

   The default stays until there are ``SURE`` samples: of fewer the noise is unknown, and clocks of
   long prompts would keep the error. Durations also wait while the first few first bytes come.
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
from math import exp, log
from typing import Final

from ext_proc.routing.latency.estimates import (
    SIGMA_PER_MEAN,
    SURE,
    Fit,
    Median,
    Peak,
    Rate,
    Ratio,
    RegressionSample,
    Slope,
)

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
SUSPECT: Final = NOISE / 4.0
"""Deviation from which on a replica's own durations are looked at; most never reach it."""
SIGNIFICANT: Final = 3.0
"""Standard errors by which a replica's cost of a token must differ from its fleet's (rule 6)."""
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
        self, capacity: float, tokens: float | None, drain_s: float, ahead: int, elapsed_s: float
    ) -> RegressionSample | None:
        """Learn from a request that ended; the arguments are those of ``LatencyModel.learn``.

        Returns:
            A sample for the replica's slowness, ``None`` if there is none.
        """
        self._seen += 1
        self._unreported += tokens is not None
        if self._seen > YOUNG and self._seen & 3:
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
        self, capacity: float, tokens: float, drain_s: float, seconds: float
    ) -> RegressionSample | None:
        """Learn from a first byte; the arguments are those of ``LatencyModel.answered``.

        Returns:
            A sample for the replica's slowness, ``None`` if there is none.
        """
        self._first_bytes += 1
        self._unreported = 0
        if self._first_bytes > YOUNG and self._first_bytes & 3:
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

    __slots__ = ("_capacity", "_fleet", "_ratio", "_slope", "latency_s", "peak", "slowness")

    def __init__(self, fleet: FleetLatencyModel, capacity: float) -> None:
        self._fleet = fleet
        self._capacity = capacity
        self._ratio = Ratio()
        self._slope: Slope | None = None
        """Its own cost of a token by durations, while these are the source (rule 6)."""
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
        sample = self._fleet.learn(self._capacity, tokens, drain_s, ahead, elapsed_s)
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
        self._compare(self._fleet.answered(self._capacity, tokens, drain_s, max(seconds, 1e-6)))

    def counted(self, tokens: float, drain_s: float, seconds: float) -> None:
        """Learn from prompts whose first tokens the engine counted; all arguments are means."""
        self._compare(self._fleet.counted(self._capacity, tokens, drain_s, max(seconds, 1e-6)))

    def drained(self, tokens: float, seconds: float, prompts: int) -> None:
        """Learn from a queue that was not empty; see ``FleetLatencyModel.drained``."""
        self._fleet.drained(self._capacity, tokens, seconds, prompts)

    def _compare(self, sample: RegressionSample | None) -> None:
        if sample is not None:
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
        """Return a deviation of durations as far as the cost of a token confirms it (rule 6)."""
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
