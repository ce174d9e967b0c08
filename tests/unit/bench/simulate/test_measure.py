"""Metrics of runs: percentiles, fractions, intervals."""

from __future__ import annotations

import pytest

from bench.engine import EngineConfig
from bench.simulate.fleet import End, Record
from bench.simulate.measure import RunMetrics, estimate, measure, paired, percentile
from bench.simulate.replica import SimulatedReplica
from bench.simulate.workload import Job


def served(index: int, replica: int, ttft: float, e2e: float, matched: int = 0) -> Record:
    """Return a served job of two full blocks."""
    job = Job(index, 0.0, 1024, 11, (index, -index - 1))
    return Record(job, End.SERVED, replica, ttft, e2e, matched, matched)


def numbers(records: list[Record], **settings: float) -> RunMetrics:
    """Measure records of a fleet of two."""
    fleet = [SimulatedReplica(EngineConfig()), SimulatedReplica(EngineConfig())]
    return measure(records, fleet, block_tokens=512, prefill_rate=8000.0, span_s=10.0, **settings)


def test_percentiles_are_interpolated() -> None:
    """Percentiles are interpolated; without values there is none."""
    assert percentile([], 0.5) is None
    assert [percentile([1.0, 2.0, 4.0], share) for share in (0.0, 0.5, 0.75, 1.0)] == [1, 2, 3, 4]


def test_a_run_in_numbers() -> None:
    """Times, hits and spread cover served jobs; shed and lost are fractions of all jobs."""
    records = [
        served(0, 0, 1.0, 2.0),
        served(1, 0, 2.0, 4.0, matched=1),
        served(2, 1, 3.0, 3.5, matched=2),
        Record(Job(3, 0.0, 10, 1, ()), End.SHED),
        Record(Job(4, 0.0, 10, 1, ()), End.LOST, 1),
    ]
    found = numbers(records, slo_s=2.0)
    assert (found.ttft_mean, found.ttft_p50, found.e2e_p50) == (2.0, 2.0, 3.5)
    assert found.tpot_p50 == pytest.approx(0.1)
    assert found.hit_ratio == found.hit_predicted == 0.5
    assert found.spread_requests == pytest.approx(2 / 1.5)
    assert found.spread_tokens == pytest.approx(1536 / 768)
    assert (found.goodput, found.shed, found.lost) == (0.4, 0.2, 0.2)


def test_in_time_by_its_own_prompt() -> None:
    """``goodput_own`` allows each job 1 s plus twice its own prefill time."""
    long = Job(1, 0.0, 8_000, 5, ())
    records = [
        Record(Job(0, 0.0, 80, 5, ()), End.SERVED, 0, ttft, 9.0) for ttft in (1.01, 1.03)
    ] + [Record(long, End.SERVED, 0, ttft, 9.0) for ttft in (2.9, 3.1)]
    found = measure(
        records,
        [SimulatedReplica(EngineConfig())],
        block_tokens=512,
        prefill_rate=8_000.0,
        span_s=1.0,
    )
    assert found.goodput_own == 0.5


def test_nothing_served_is_unknown_and_not_zero() -> None:
    """Without served jobs times and spread are None."""
    found = numbers([Record(Job(0, 0.0, 10, 1, ()), End.SHED)])
    assert (found.ttft_mean, found.e2e_p99, found.spread_tokens, found.goodput) == (None,) * 4
    assert found.shed == 1.0


def test_only_what_is_measured_counts() -> None:
    """Only records within the measured slice count."""
    records = [served(number, 0, time, 200.0) for number, time in enumerate((100.0, 1.0, 50.0))]
    assert numbers(records, measured=slice(1, 2)).ttft_mean == 1.0


def test_intervals_cover_the_mean_and_repeat() -> None:
    """The interval contains the mean, is reproducible, and has width 0 for one run."""
    found = estimate([1.0, 2.0, 3.0, 4.0])
    assert found.low < found.mean == 2.5 < found.high
    assert found == estimate([1.0, 2.0, 3.0, 4.0])
    assert estimate([2.0]).low == estimate([2.0]).high == 2.0
    assert estimate([]) is None
    assert estimate([1.0, None]) is None


def test_a_paired_difference_removes_what_seeds_share() -> None:
    """Policies that differ by 10 % under each seed differ by exactly that."""
    found = paired([1.1, 2.2, 33.0], [1.0, 2.0, 30.0])
    assert (found.low, found.mean, found.high) == pytest.approx((0.1, 0.1, 0.1))
    assert paired([1.0], [0.0]) is None
    assert paired([None], [1.0]) is None
