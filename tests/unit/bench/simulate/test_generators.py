"""Generated workloads: reproducible, well-formed, with the documented shapes."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import mean, pstdev

import pytest

from bench.simulate.generators import GENERATORS
from bench.simulate.workload import BLOCK_TOKENS, Workload


def make(name: str, count: int = 3000, seed: int = 1) -> Workload:
    """Generate a workload."""
    return GENERATORS[name](count, random.Random(seed), 1.0)


@pytest.mark.parametrize("name", GENERATORS)
def test_jobs_are_numbered_in_order_and_whole(name: str) -> None:
    """Indices and times rise; a prompt has exactly its full blocks; outputs are not empty."""
    jobs = make(name).jobs
    assert [job.index for job in jobs] == list(range(3000))
    assert [job.at for job in jobs] == sorted(job.at for job in jobs)
    assert all(len(job.blocks) == job.input_tokens // BLOCK_TOKENS for job in jobs)
    assert all(job.output_tokens >= 1 for job in jobs)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_repeats(name: str) -> None:
    """The same seed gives the same jobs, another one others."""
    assert make(name, 50) == make(name, 50)
    assert make(name, 50) != make(name, 50, seed=2)


def test_bursts_are_bursty() -> None:
    """The gaps of the bursts vary about 13 times their mean, those of the others once."""
    gaps = {}
    for name in ("bursts", "mixed"):
        times = [job.at for job in make(name, 20_000).jobs]
        steps = [later - earlier for earlier, later in pairwise(times)]
        gaps[name] = pstdev(steps) / mean(steps)
    assert 9 < gaps["bursts"] < 17
    assert 0.9 < gaps["mixed"] < 1.1


def test_a_session_grows() -> None:
    """Each turn of a session extends the one before it."""
    last: dict[str | None, tuple[int, ...]] = {}
    for job in make("sessions").jobs:
        known = last.get(job.session, ())
        assert job.blocks[: len(known)] == known
        last[job.session] = job.blocks


def test_a_pace_sets_the_arrivals_and_leaves_the_pauses() -> None:
    """Twice the pace halves the gaps between sessions but not the pauses of users."""
    pauses = []
    for pace in (1.0, 4.0):
        workload = GENERATORS["sessions"](4000, random.Random(1), pace)
        last: dict[str | None, float] = {}
        seen = []
        for job in workload.jobs:
            if job.session in last:
                seen.append(job.at - last[job.session])
            last[job.session] = job.at
        pauses.append(mean(seen))
        assert workload.rate == pytest.approx(pace, rel=0.2)
    assert pauses[1] == pytest.approx(pauses[0], rel=0.1)
