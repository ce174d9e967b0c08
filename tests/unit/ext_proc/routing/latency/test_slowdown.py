"""The slowdown of a replica, detected from late first bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.latency.slowdown import (
    CLEAR_S,
    CONFIRMATIONS,
    DEVIATIONS,
    HALF_S,
    LEAST,
    MOST,
    THRESHOLD_S,
    TOLERANCE,
    Slowdown,
)

AT = 100.0


def fed(
    *prompts: tuple[float, float], cold_s: float = 0.0, noise_s: float = 0.0, at: float = AT
) -> Slowdown:
    """Return the slowdown after prompts given as actual and expected seconds."""
    slowdown = Slowdown()
    for took_s, expected_s in prompts:
        slowdown.add(took_s, expected_s, cold_s=cold_s, noise_s=noise_s, at=at)
    return slowdown


def test_a_prompt_that_took_seconds_too_long_is_enough() -> None:
    """One clear prompt sets the slowdown and its factor."""
    slowdown = fed((8.0, 2.0))
    assert slowdown.known
    assert slowdown.factor(AT) == pytest.approx(4.0, rel=0.1)


def test_short_prompts_add_up() -> None:
    """Several short late prompts set the slowdown, a single one does not."""
    prompts = [(0.2, 0.05)] * 3
    assert [fed(*prompts[:count]).known for count in (1, 2, 3)] == [False, False, True]


def test_good_work_between_clears_it() -> None:
    """Prompts on time subtract from the sum of the late ones."""
    assert not fed(*[(0.2, 0.05), (0.1, 0.1)] * 20).known


def test_a_short_pause_is_no_slowdown() -> None:
    """A single pause below the threshold does not count."""
    assert not fed((THRESHOLD_S, 0.01)).known


def test_one_prompt_that_took_a_little_long_is_not_enough() -> None:
    """It may have waited for a prompt of another picker; a second one is needed."""
    for beyond, known in ((CLEAR_S - 0.1, False), (CLEAR_S + 0.1, True)):
        assert fed((TOLERANCE * 0.1 + beyond, 0.1)).known is known
    assert fed(*[(TOLERANCE * 0.1 + CLEAR_S - 0.1, 0.1)] * CONFIRMATIONS).known


def test_noisy_first_bytes_raise_the_threshold() -> None:
    """The threshold is a multiple of the usual deviation."""
    beyond = DEVIATIONS * 0.5
    assert not fed((beyond, 0.01), noise_s=0.5).known
    assert fed((beyond + 1.0, 0.01), noise_s=0.5).known


def test_a_possible_cache_miss_is_not_enough() -> None:
    """A prompt that took as long as without a cache counts only if several follow in a row."""
    misses = [(4.0, 0.1)] * CONFIRMATIONS
    assert not fed(*misses[:-1], cold_s=4.0).known
    assert fed(*misses, cold_s=4.0).known
    assert fed(misses[0], cold_s=4.0 / TOLERANCE - 0.1).known


def test_prompts_on_time_end_the_slowdown() -> None:
    """After some prompts on time the slowdown is cleared."""
    assert not fed((8.0, 2.0), *[(2.0, 2.0)] * 12).known


def test_a_short_prompt_that_hung_is_soon_outweighed() -> None:
    """The factor of one hung prompt is bounded, and a few prompts on time clear it."""
    assert fed((60.0, 0.1)).factor(AT) < 8.0
    assert not fed((60.0, 0.1), *[(0.5, 0.5)] * 5).known


def test_a_recovering_replica_s_factor_falls_gradually() -> None:
    """The latest prompts have the largest weight."""
    factors = [fed((8.0, 2.0), *[(4.0, 2.0)] * count).factor(AT) for count in range(6)]
    assert factors == sorted(factors, reverse=True)
    assert 2.0 < factors[-1] < 2.6


def test_it_decays_without_new_samples() -> None:
    """It halves every ``HALF_S``, and is 1 once it is below the minimum."""
    slowdown = fed((8.0, 2.0))
    before = slowdown.factor(AT)
    assert slowdown.factor(AT + HALF_S) == pytest.approx(1.0 + (before - 1.0) / 2.0)
    assert slowdown.factor(AT - 1.0) == before
    assert slowdown.factor(AT + 5 * HALF_S) == 1.0


SECONDS = st.floats(0.0, 1e4)


@given(expected=st.lists(SECONDS, max_size=40), share=st.floats(0.0, TOLERANCE))
def test_there_is_no_slowdown_within_the_tolerance(expected: list[float], share: float) -> None:
    """Any number of prompts within twice their expected time sets no slowdown."""
    assert not fed(*[(share * each, each) for each in expected]).known


@given(
    prompts=st.lists(st.tuples(SECONDS, SECONDS, SECONDS, SECONDS), max_size=40),
    later=st.floats(0.0, 1e5),
)
def test_the_factor_is_bounded(
    prompts: list[tuple[float, float, float, float]], later: float
) -> None:
    """It is 1 or between the minimum and the maximum, and never grows without new samples."""
    slowdown = Slowdown()
    for at, (took_s, expected_s, cold_s, noise_s) in enumerate(prompts):
        slowdown.add(took_s, expected_s, cold_s=cold_s, noise_s=noise_s, at=float(at))
        factor = slowdown.factor(at)
        assert factor == 1.0 or LEAST <= factor <= MOST
        assert slowdown.known == (factor > 1.0)
        assert slowdown.factor(at + later) <= factor
    slowdown.clear()
    assert (slowdown.known, slowdown.factor(0.0)) == (False, 1.0)
