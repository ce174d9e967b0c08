"""Metrics of one run, and estimates over several runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor
from random import Random
from typing import TYPE_CHECKING, Final

from bench.simulate.fleet import End
from bench.simulate.workload import ideal_hit_ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.simulate.fleet import Record
    from bench.simulate.replica import SimulatedReplica

RESAMPLES: Final = 2_000
OWN_BASE_S: Final = 1.0
OWN_FACTOR: Final = 2.0
_BOOTSTRAP_SEED: Final = 20_240_117
"""Fixed seed, so that the same runs give the same intervals."""


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """Metrics of one run; times in seconds, fractions in 0..1, unknown is ``None``.

    Percentiles cover the served jobs; ``goodput`` counts jobs that were not served as misses.
    """

    ttft_mean: float | None
    ttft_p50: float | None
    ttft_p90: float | None
    ttft_p99: float | None
    tpot_p50: float | None
    """Median time per output token after the first."""
    tpot_p99: float | None
    e2e_mean: float | None
    e2e_p50: float | None
    e2e_p90: float | None
    e2e_p99: float | None
    hit_ratio: float
    """Fraction of input tokens found in the cache."""
    hit_ideal: float
    """The same fraction with one unbounded cache shared by all replicas."""
    hit_predicted: float
    """The fraction that the scheduler expected."""
    spread_requests: float | None
    """Maximum number of requests of a replica divided by the mean."""
    spread_tokens: float | None
    """Maximum number of computed input tokens of a replica divided by the mean."""
    goodput: float | None
    """Fraction of jobs with a TTFT within the limit; ``None`` without a limit."""
    goodput_own: float | None
    """Fraction of jobs within their own limit: 1 s plus twice the uncached prefill time alone."""
    shed: float
    lost: float
    prefill_use: float
    """Utilisation of the fleet's prefill rate over the whole run."""

    def as_dict(self) -> dict[str, float | None]:
        """Return the metrics by name."""
        return {name: getattr(self, name) for name in self.__slots__}


METRICS: Final = tuple(RunMetrics.__slots__)


def measure(
    records: Sequence[Record],
    fleet: Sequence[SimulatedReplica],
    *,
    block_tokens: int,
    prefill_rate: float,
    span_s: float,
    measured: slice = slice(None),
    slo_s: float | None = None,
) -> RunMetrics:
    """Return the metrics of one run.

    Args:
        records: Records in order of arrival.
        fleet: Replicas after the run.
        block_tokens: Tokens per block.
        prefill_rate: Prompt tokens per second of a replica of speed 1.
        span_s: Time from the first to the last arrival, seconds.
        measured: Slice of the records that count; earlier ones warm the caches.
        slo_s: TTFT limit, seconds.
    """
    skip, stop, _ = measured.indices(len(records))
    kept = records[skip:stop]
    served = [each for each in kept if each.end is End.SERVED]
    ttft = sorted(each.ttft_s for each in served if each.ttft_s is not None)
    e2e = sorted(each.e2e_s for each in served if each.e2e_s is not None)
    tpot = sorted(
        (each.e2e_s - each.ttft_s) / (each.job.output_tokens - 1)
        for each in served
        if each.e2e_s is not None and each.ttft_s is not None and each.job.output_tokens > 1
    )
    prompt = sum(each.job.input_tokens for each in served)
    requests = [0.0] * len(fleet)
    tokens = [0.0] * len(fleet)
    for each in served:
        if each.replica is not None:
            requests[each.replica] += 1
            tokens[each.replica] += each.job.input_tokens - each.matched * block_tokens
    strength = sum(replica.speed for replica in fleet) * prefill_rate * span_s
    in_time = None if slo_s is None else sum(1 for time in ttft if time <= slo_s)
    return RunMetrics(
        ttft_mean=_mean(ttft),
        ttft_p50=percentile(ttft, 0.5),
        ttft_p90=percentile(ttft, 0.9),
        ttft_p99=percentile(ttft, 0.99),
        tpot_p50=percentile(tpot, 0.5),
        tpot_p99=percentile(tpot, 0.99),
        e2e_mean=_mean(e2e),
        e2e_p50=percentile(e2e, 0.5),
        e2e_p90=percentile(e2e, 0.9),
        e2e_p99=percentile(e2e, 0.99),
        hit_ratio=sum(each.matched for each in served) * block_tokens / max(1, prompt),
        hit_ideal=ideal_hit_ratio([each.job for each in records[:stop]], block_tokens, skip),
        hit_predicted=sum(each.predicted for each in served) * block_tokens / max(1, prompt),
        spread_requests=_spread(requests),
        spread_tokens=_spread(tokens),
        goodput=None if in_time is None or not kept else in_time / len(kept),
        goodput_own=sum(
            each.ttft_s is not None
            and each.ttft_s <= OWN_BASE_S + OWN_FACTOR * each.job.input_tokens / prefill_rate
            for each in served
        )
        / len(kept)
        if kept
        else None,
        shed=_share(kept, End.SHED),
        lost=_share(kept, End.LOST),
        prefill_use=sum(each.computed_tokens for each in fleet) / strength if strength else 0.0,
    )


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return a percentile by linear interpolation, ``None`` without values.

    Args:
        ordered: Values in ascending order.
        share: Rank in 0..1.
    """
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    low, high = floor(place), ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class MeanEstimate:
    """A mean over seeds with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


def estimate(values: Sequence[float | None]) -> MeanEstimate | None:
    """Return the mean over runs with its interval, ``None`` if a run has no value.

    The interval is the percentile bootstrap over seeds. It covers the randomness of arrivals and
    routing, not the choice of the trace; for a single run its width is 0.
    """
    known = [value for value in values if value is not None]
    if not known or len(known) != len(values):
        return None
    mean = sum(known) / len(known)
    means = sorted(
        each
        for runs, times in _resamples(len(known)).items()
        for each in [sum(map(known.__getitem__, runs)) / len(runs)] * times
    )
    low, high = percentile(means, 0.025), percentile(means, 0.975)
    return MeanEstimate(mean, mean if low is None else low, mean if high is None else high)


@lru_cache(maxsize=16)
def _resamples(runs: int) -> Mapping[tuple[int, ...], int]:
    """Return how often each choice of so many runs, with replacement, is drawn."""
    rng = Random(_BOOTSTRAP_SEED)  # noqa: S311 - repeatable intervals are the point
    return Counter(tuple(rng.choices(range(runs), k=runs)) for _ in range(RESAMPLES))


def paired(values: Sequence[float | None], against: Sequence[float | None]) -> MeanEstimate | None:
    """Return the mean relative difference to another policy with the same seeds.

    0.1 is 10 % more than the other policy; ``None`` if a run has no value or the other's is 0.
    """
    ratios: list[float | None] = [
        None if one is None or not other else one / other - 1.0
        for one, other in zip(values, against, strict=True)
    ]
    return estimate(ratios)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _spread(values: Sequence[float]) -> float | None:
    total = sum(values)
    return max(values) * len(values) / total if total else None


def _share(records: Sequence[Record], end: End) -> float:
    return sum(1 for each in records if each.end is end) / max(1, len(records))
