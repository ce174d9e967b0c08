"""Timing of the replica in cases that can be computed by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.engine import EngineConfig
from bench.simulate.replica import ReplicaTask, SimulatedReplica
from bench.simulate.workload import BLOCK_TOKENS, Job

BASE, EACH, RATE = 0.006, 0.00035, 8000.0
ENGINE = EngineConfig(prefill_rate=RATE, base_s=BASE, per_request_s=EACH, step_tokens=2048)


def task(index: int, tokens: int, output: int, *blocks: int, at: float = 0.0) -> ReplicaTask:
    """Return a task; without blocks its prompt is unshared."""
    full = tokens // 512
    own = blocks or tuple(index * 1000 + number for number in range(full))
    return ReplicaTask(Job(index, at, tokens, output, own), at)


def drain(replica: SimulatedReplica) -> list[tuple[float, str, int]]:
    """Advance to the end; return the events with their times."""
    seen = []
    while replica.next_at < inf:
        now = replica.next_at
        ended = replica.advance()
        seen += [(now, "first", each.job.index) for each in ended.first]
        seen += [(now, "finished", each.job.index) for each in ended.finished]
    return seen


def test_one_request_alone() -> None:
    """One step for a short prompt, then a step per further token."""
    replica = SimulatedReplica(ENGINE)
    replica.arrive(task(1, 1000, 3), 10.0)
    first = 10.0 + BASE + 1000 / RATE
    seen = drain(replica)
    assert [(kind, who) for _, kind, who in seen] == [("first", 1), ("finished", 1)]
    assert [at for at, _, _ in seen] == pytest.approx([first, first + 2 * (BASE + EACH)])
    assert (replica.computed_tokens, replica.generated_tokens) == (1000, 3)
    assert replica.busy_s == pytest.approx(seen[-1][0] - 10.0)


def test_a_prompt_delays_the_tokens_of_others() -> None:
    """During a prompt, each step gives a decoding request one token."""
    replica = SimulatedReplica(ENGINE)
    replica.arrive(task(1, 100, 1001), 0.0)
    replica.advance()
    begun = replica.next_at - 1000 * (BASE + EACH)
    replica.arrive(task(2, 2047, 1, at=begun), begun)  # 2,048 less the decoding one: one step
    seen = drain(replica)
    step = BASE + EACH
    assert seen[0][:2] == (pytest.approx(begun + step + step + 2047 / RATE), "first")
    assert seen[-1] == (pytest.approx(begun + 1000 * step + 2047 / RATE), "finished", 1)


def test_an_arrival_cuts_the_stride_at_the_end_of_its_step() -> None:
    """A prompt that arrives during a step waits for the end of the step, not of the stride."""
    replica = SimulatedReplica(ENGINE)
    replica.arrive(task(1, 100, 500), 0.0)
    replica.advance()
    begun, step = BASE + 100 / RATE, BASE + EACH
    replica.arrive(task(2, 512, 1), begun + 10.5 * step)
    assert replica.next_at == pytest.approx(begun + 11 * step)
    replica.arrive(task(3, 512, 1), begun + 10.7 * step)
    assert replica.next_at == pytest.approx(begun + 11 * step)


def test_an_engine_may_begin_its_base_with_decoding() -> None:
    """Without ``base_always``, a step without decoding takes only its prompt's time."""
    replica = SimulatedReplica(replace(ENGINE, base_always=False))
    replica.arrive(task(1, 1000, 3), 0.0)
    first = 1000 / RATE
    assert [at for at, _, _ in drain(replica)] == pytest.approx([first, first + 2 * (BASE + EACH)])


def test_an_engine_may_keep_its_room_for_prompts() -> None:
    """Without ``shared_budget``, a full-step prompt takes one step beside decoding, else two."""
    for shared, steps in ((True, 2), (False, 1)):
        replica = SimulatedReplica(EngineConfig(step_tokens=100, shared_budget=shared))
        replica.arrive(task(1, 10, 1000), 0.0)
        now = replica.next_at
        replica.advance()
        replica.arrive(task(2, 100, 1), now)
        taken = 0
        while not any(each.job.index == 2 for each in replica.advance().first):
            taken += 1
        assert taken == steps


def test_a_cached_prefix_is_not_computed_again() -> None:
    """The second prompt computes only its tail, a full repeat one token."""
    replica = SimulatedReplica(ENGINE)
    for index, tokens in ((1, 1024), (2, 1124), (3, 1024)):
        replica.arrive(task(index, tokens, 1, 7, 8), 0.0)
        assert drain(replica)
    assert replica.computed_tokens == 1024 + 100 + 1


def test_a_prefix_that_is_still_computed_is_matched_when_its_turn_comes() -> None:
    """The prediction includes queued prompts, so the next prompt computes only its tail."""
    replica = SimulatedReplica(ENGINE)
    replica.arrive(task(1, 4096, 1, *range(8)), 0.0)
    follower = task(2, 4196, 1, *range(8))
    assert replica.foresee(follower.job) == 100
    replica.arrive(follower, 0.0)
    assert replica.backlog_tokens == 4196
    drain(replica)
    assert (replica.computed_tokens, replica.backlog_tokens, replica.coming) == (4196, 0, {})
    assert follower.matched == 8


def test_the_batch_is_bounded() -> None:
    """No more than max_running run; the next is admitted when one ends."""
    replica = SimulatedReplica(EngineConfig(max_running=2))
    for index in (1, 2, 3):
        replica.arrive(task(index, 10, 5), 0.0)
    replica.advance()
    replica.advance()
    assert (replica.running, replica.queued, replica.decoding) == (2, 1, 2)
    assert len(drain(replica)) == 4


def test_memory_holds_requests_back() -> None:
    """A request whose blocks do not fit waits until blocks are free."""
    replica = SimulatedReplica(EngineConfig(cache_blocks=4))
    replica.arrive(task(1, 1024, 100), 0.0)
    replica.arrive(task(2, 1024, 1), 0.0)
    replica.advance()
    assert (replica.running, replica.queued, replica.kv_used) == (1, 1, 0.75)
    assert [who for _, kind, who in drain(replica) if kind == "finished"] == [1, 2]


def test_what_can_never_run_is_refused() -> None:
    """A request larger than the cache is an error that names it."""
    replica = SimulatedReplica(EngineConfig(cache_blocks=4))
    with pytest.raises(ValueError, match="request 9 needs 5 cache blocks"):
        replica.arrive(task(9, 2048, 100), 0.0)


def test_a_failure_loses_everything() -> None:
    """A failure returns all tasks once, and the replica is empty with a cold cache."""
    replica = SimulatedReplica(ENGINE)
    for index in range(5):
        replica.arrive(task(index, 3000, 50), 0.0)
    for _ in range(3):
        replica.advance()
    assert sorted(each.job.index for each in replica.fail()) == list(range(5))
    assert (replica.next_at, replica.running, replica.queued) == (inf, 0, 0)
    assert (replica.cache.held, replica.cache.used, replica.backlog_tokens) == (0, 0, 0)
    assert repr(replica) == "<SimulatedReplica waiting=0 running=0>"


def test_blocks_of_engine_and_traces_are_of_one_size() -> None:
    """The block size of the engine equals that of traces."""
    assert EngineConfig().block_tokens == BLOCK_TOKENS


@given(
    st.lists(
        st.tuples(st.integers(1, 9_000), st.integers(1, 400), st.floats(0.0, 2.0)), max_size=8
    ),
    st.floats(0.0, 3.0),
)
def test_the_first_token_is_foreseen(jobs: list[tuple[int, int, float]], pause: float) -> None:
    """What is computed of prompts in work, or cached, is not waited for, to the step and 2 %.

    Answers that end meanwhile make later steps a little shorter.
    """
    replica, now = SimulatedReplica(ENGINE), 10.0
    replica.arrive(task(50, 8 * 512, 1, *range(8)), 0.0)
    drain(replica)
    for index, (tokens, output, gap) in enumerate(jobs):
        now += gap
        while replica.next_at <= now:
            replica.advance()
        blocks = [block if block < 8 else 1000 * index + block for block in range(tokens // 512)]
        replica.arrive(task(index, tokens, output, *blocks), now)
    now += pause
    while replica.next_at <= now:
        replica.advance()
    probe = task(100, 3000, 1, at=now)
    foreseen = replica.first_token_s(probe.job, now)
    replica.arrive(probe, now)
    took = next(at for at, kind, who in drain(replica) if (kind, who) == ("first", 100)) - now
    assert took == pytest.approx(foreseen, rel=0.02, abs=0.02)


@given(st.lists(st.integers(512, 9_000), min_size=1, max_size=5), st.floats(0.0, 2.0))
def test_a_shared_prompt_in_work_is_foreseen_where_planned_blocks_are_shared(
    prompts: list[int], pause: float
) -> None:
    """The wait for the prompts before it is all that a prompt needs for what it shares with them.

    The prompts are steps of one session, all before the first token of the first.
    """
    replica, now, tokens = SimulatedReplica(replace(ENGINE, cache_planned=True)), 0.0, 0
    for index, more in enumerate(prompts):
        tokens += more
        replica.arrive(task(index, tokens, 50, *range(tokens // 512)), now)
    now += pause
    while replica.next_at <= now:
        replica.advance()
    probe = task(100, tokens + 700, 1, *range((tokens + 700) // 512), at=now)
    foreseen = replica.first_token_s(probe.job, now)
    replica.arrive(probe, now)
    took = next(at for at, kind, who in drain(replica) if (kind, who) == ("first", 100)) - now
    assert took == pytest.approx(foreseen, rel=0.02, abs=0.02)
