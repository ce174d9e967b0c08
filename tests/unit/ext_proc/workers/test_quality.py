"""Workers that replicate their events decide as well as one picker does, in simulated time."""

from __future__ import annotations

from functools import cache
from random import Random
from statistics import median

from bench.simulate.generators import sessions
from bench.workers_quality import LATE_S, simulate

RATE = 14.0
REQUESTS = 1_000
SEEDS = range(3)


@cache
def alone(seed: int) -> tuple[float, float]:
    """Return one picker's mean time to the first token and share of cached tokens."""
    one = simulate(sessions(REQUESTS, Random(seed)), RATE, seed, 1, None)
    return one.ttft_mean, one.hit_ratio


def ratio(pickers: int, delay_s: float | None) -> tuple[float, float]:
    """Return mean time to the first token and share of cached tokens against one picker's."""
    times, hits = [], []
    for seed in SEEDS:
        jobs = sessions(REQUESTS, Random(seed))
        crew = simulate(jobs, RATE, seed, pickers, delay_s)
        ttft_mean, hit_ratio = alone(seed)
        times.append(crew.ttft_mean / ttft_mean)
        hits.append(crew.hit_ratio / hit_ratio)
    return median(times), median(hits)


def test_what_is_told_soon_is_as_good_as_known():
    """With the maximum delay of replication neither waiting times nor cache hits suffer."""
    times, hits = ratio(2, LATE_S)
    assert times < 1.1
    assert hits > 0.98


def test_what_is_not_told_costs():
    """Without replication the same workers are worse, so the test above can fail."""
    times, hits = ratio(2, None)
    assert times > 1.4
    assert hits < 0.95
