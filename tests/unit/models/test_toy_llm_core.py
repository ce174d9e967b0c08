"""The engine core: settings, strides and ends of requests."""

from dataclasses import replace

import pytest
from toyllm.core import EngineConfig, EngineCore, Task

CONFIG = EngineConfig(
    prefill_rate=1000.0,
    base_s=0.01,
    per_request_s=0.001,
    step_tokens=16,
    max_running=8,
    cache_blocks=32,
    block_tokens=4,
)


def core(**changes) -> EngineCore[Task]:
    """Return a core of small blocks."""
    return EngineCore(replace(CONFIG, **changes))


def task(index: int, prompt: int, answer: int = 1, first_block: int | None = None) -> Task:
    """Return a request; its blocks are its own unless the first one is given."""
    start = index * 100 if first_block is None else first_block
    return Task(index, prompt, answer, list(range(start, start + prompt // 4)))


def stride(subject: EngineCore[Task]) -> tuple[list[int], list[int]]:
    """Execute one stride; return the requests with a first token and the finished ones."""
    subject.begin()
    ended = subject.end()
    return [each.index for each in ended.first], [each.index for each in ended.finished]


def test_a_stride_can_be_cut() -> None:
    """The cut steps are planned again."""
    subject = core()
    subject.arrive(task(1, 4, 10))
    stride(subject)
    subject.begin()
    subject.cut(3)
    assert not subject.end().finished
    assert subject.begin() == 6


def test_who_gets_a_token() -> None:
    """Decoding requests in the order of arrival, then those whose prompt ends."""
    subject = core()
    for each in (task(1, 4, 9), task(2, 4, 5), task(3, 4, 7)):
        subject.arrive(each)
    stride(subject)
    subject.arrive(task(4, 4))
    subject.arrive(task(5, 40))
    subject.begin()
    assert [each.index for each in subject.due()] == [1, 2, 3, 4]


@pytest.mark.parametrize(("ahead", "queued"), [(False, 1), (True, 0)])
def test_admission_can_run_ahead_of_the_budget(ahead: bool, queued: int) -> None:
    """``admit_ahead`` decides whether a prompt without budget waits or joins the batch."""
    subject = core(admit_ahead=ahead)
    subject.arrive(task(1, 16))
    subject.arrive(task(2, 16))
    subject.begin()
    assert subject.queued == queued


@pytest.mark.parametrize(("at_once", "held"), [(False, 0), (True, 4)])
def test_chunks_can_be_matched_at_once_or_when_the_prompt_is_done(at_once: bool, held: int) -> None:
    """After the first of two chunks, others find its blocks or none."""
    subject = core(cache_at_once=at_once, cache_planned=False)
    subject.arrive(task(1, 32))
    stride(subject)
    assert subject.cache.match(range(100, 108)) == held


@pytest.mark.parametrize(("planned", "computed"), [(False, 20 + 24), (True, 20 + 4)])
def test_a_prompt_in_the_same_step_shares_what_is_planned_or_computes_it_again(
    planned: bool, computed: int
) -> None:
    """The last chunk of the first prompt leaves room for the second, which begins with it."""
    subject = core(cache_planned=planned)
    subject.arrive(task(1, 20, first_block=7))
    subject.arrive(task(2, 24, first_block=7))
    while subject.begin():
        subject.end()
    assert subject.computed_tokens == computed


@pytest.mark.parametrize(("at_once", "held"), [(False, 1), (True, 2)])
def test_blocks_of_answers_can_be_cached(at_once: bool, held: int) -> None:
    """``cache_at_once`` decides whether blocks of answers are cached."""
    subject = core(cache_at_once=at_once, cache_planned=False)
    one = task(1, 4, 5)
    subject.arrive(one)
    stride(subject)
    subject.begin()
    if at_once:
        one.blocks.append(101)
    subject.end()
    assert subject.cache.match((100, 101)) == held


@pytest.mark.parametrize(("recompute", "tokens"), [(False, 1), (True, 4)])
def test_a_cached_prompt_computes_a_token_or_a_block(recompute: bool, tokens: int) -> None:
    """A completely cached prompt computes one token or one block."""
    subject = core(recompute_block=recompute)
    for index in (1, 2):
        subject.arrive(task(index, 8, first_block=7))
        stride(subject)
    assert subject.computed_tokens == 8 + tokens


def test_a_request_can_be_cancelled_in_each_state() -> None:
    """Waiting, in its prompt or decoding: it is gone and holds nothing."""
    subject = core(max_running=2)
    decoding, prompt, waiting = task(1, 4, 9), task(2, 40), task(3, 4)
    for each in (decoding, prompt, waiting):
        subject.arrive(each)
    stride(subject)
    assert (subject.decoding, subject.prefilling, subject.queued) == (1, 1, 1)
    for each in (decoding, prompt, waiting):
        subject.cancel(each)
    assert (subject.running, subject.queued, subject.cache.used) == (0, 0, 0)
    assert subject.begin() == 0


def test_a_request_that_ended_cannot_be_cancelled() -> None:
    """It is an error, and nothing is released twice."""
    subject = core()
    one = task(1, 4)
    subject.arrive(one)
    stride(subject)
    with pytest.raises(ValueError, match="request 1 is not running"):
        subject.cancel(one)
