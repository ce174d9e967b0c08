"""Workloads: pacing, spreading, sessions and the ideal hit ratio."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulate.workload import (
    Job,
    Workload,
    arrivals,
    block_id,
    ideal_hit_ratio,
    of_models,
    recut,
    with_sessions,
)


def job(index: int, at: float, *blocks: int, tokens: int | None = None) -> Job:
    """Return a job whose prompt has these full blocks."""
    return Job(index, at, 512 * len(blocks) + 100 if tokens is None else tokens, 10, blocks)


def test_a_rate_divides_all_gaps_alike() -> None:
    """Twice the rate halves each gap; the first arrival is at 0."""
    jobs = [job(0, 5.0), job(1, 6.0), job(2, 9.0)]
    workload = Workload("w", jobs)
    assert arrivals(workload, workload.rate * 2, random.Random(0)) == [0.0, 0.5, 2.0]


def test_jobs_of_one_instant_have_no_rate() -> None:
    """A rate for simultaneous jobs is an error that names the workload."""
    workload = Workload("all-at-once", [job(0, 1.0), job(1, 1.0)])
    with pytest.raises(ValueError, match="all-at-once"):
        arrivals(workload, 2.0, random.Random(0))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(0, 5))
def test_slots_are_spread_up_to_the_next_one(slots: list[int], seed: int) -> None:
    """Spread jobs keep their order and stay inside their slot."""
    times = [3.0 * slot for slot in sorted(slots)]
    workload = Workload("w", [job(i, at) for i, at in enumerate(times)], slotted=True)
    spread = arrivals(workload, None, random.Random(seed))
    assert spread == sorted(spread)
    distinct = sorted(set(times))
    origin = spread[0] - times[0]
    for at, moved in zip(times, spread, strict=True):
        later = [each for each in distinct if each > at]
        if later:
            assert moved <= later[0] - times[0] + 1e-9 - min(0.0, origin)


def test_block_ids_are_distinct_signed_64_bit() -> None:
    """Different numbers give different ids that fit a signed 64-bit integer."""
    ids = {block_id(number) for number in range(10_000)}
    assert len(ids) == 10_000
    assert all(-(2**63) <= each < 2**63 for each in ids)


def test_a_turn_joins_the_session_it_continues() -> None:
    """A prompt that extends all full blocks of an earlier one has its session."""
    named = with_sessions([job(0, 0, 1, 2), job(1, 1, 1, 3), job(2, 2, 1, 2, 4), job(3, 3, 1)])
    assert [each.session for each in named] == ["s0", "s1", "s0", "s3"]


def test_the_ideal_counts_contiguous_known_blocks() -> None:
    """An unbounded cache serves the longest known prefix of any earlier job."""
    jobs = [job(0, 0, 1, 2, tokens=1024), job(1, 1, 1, 2, 3, tokens=2048), job(2, 2, 9, 2)]
    assert ideal_hit_ratio(jobs[:2], 512) == pytest.approx(1024 / 3072)
    assert ideal_hit_ratio(jobs[:2], 512, skip=1) == pytest.approx(1024 / 2048)
    assert ideal_hit_ratio(jobs[2:], 512) == 0.0


def test_the_first_jobs_of_a_workload() -> None:
    """A shortened workload keeps its format."""
    workload = Workload("w", [job(0, 0), job(1, 1)], slotted=True)
    assert workload.first(1) == Workload("w", [job(0, 0)], slotted=True)
    assert Workload("w", []).rate == 0.0
    assert arrivals(Workload("w", []), 1.0, random.Random(0)) == []


@given(st.sampled_from((16, 128, 512, 1_024)), st.integers(0, 5), st.integers(0, 1_400))
def test_prompts_share_as_many_tokens_in_other_blocks(tokens: int, shared: int, own: int) -> None:
    """Recut prompts are whole blocks, and share those of the trace's blocks that they fill."""
    roots = tuple(block_id(number) for number in range(shared))
    jobs = [
        Job(index, 0.0, 512 * shared + own, 1, (*roots, *(block_id(9 + index),) * (own // 512)))
        for index in range(2)
    ]
    first, second = recut(Workload("w", jobs), tokens).jobs
    assert len(first.blocks) <= first.input_tokens // tokens
    alike = sum(ours == theirs for ours, theirs in zip(first.blocks, second.blocks, strict=True))
    assert alike == 512 * shared // tokens


def test_blocks_that_do_not_fit_are_refused() -> None:
    """Lengths of which neither divides the other are an error that names both."""
    with pytest.raises(ValueError, match="512 tokens and of 768"):
        recut(Workload("w", [job(0, 0.0, 1)]), 768)


def test_models_share_no_blocks_and_keep_their_sessions() -> None:
    """Jobs of a session have one model; a block of two models is two blocks."""
    jobs = [Job(index, 0.0, 600, 1, (7,), f"s{index % 20}") for index in range(40)]
    divided = of_models(Workload("w", jobs), 2).jobs
    known = {each.session: each.model for each in divided}
    assert all(each.model == known[each.session] for each in divided)
    assert len({(each.model, each.blocks) for each in divided}) == 2
