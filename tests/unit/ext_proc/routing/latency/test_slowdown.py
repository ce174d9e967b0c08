"""What late first bytes say of a replica's speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.latency.slowdown import (
    CLEAR_S,
    DEVIATIONS,
    HALF_S,
    LEAST,
    MOST,
    THRESHOLD_S,
    TOLERANCE,
    WITNESSES,
    Slowdown,
)

AT = 100.0


def fed(
    *prompts: tuple[float, float], cold_s: float = 0.0, noise_s: float = 0.0, at: float = AT
) -> Slowdown:
    """Return what is known after prompts that took, and were expected to take, some seconds."""
    slowdown = Slowdown()
    for took_s, expected_s in prompts:
        slowdown.add(took_s, expected_s, cold_s=cold_s, noise_s=noise_s, at=at)
    return slowdown


def test_a_prompt_that_took_seconds_too_long_says_it() -> None:
    """One is enough where it is clear, and tells by how much."""
    slowdown = fed((8.0, 2.0))
    assert slowdown.known
    assert slowdown.factor(AT) == pytest.approx(4.0, rel=0.1)


def test_short_prompts_say_it_together() -> None:
    """Each took too little time to prove anything."""
    prompts = [(0.2, 0.05)] * 3
    assert [fed(*prompts[:count]).known for count in (1, 2, 3)] == [False, False, True]


def test_good_work_between_clears_it() -> None:
    """Prompts that took what they should take off what the others added."""
    assert not fed(*[(0.2, 0.05), (0.1, 0.1)] * 20).known


def test_who_stood_still_for_a_moment_is_not_slow() -> None:
    """A pause below the threshold is no change of speed."""
    assert not fed((THRESHOLD_S, 0.01)).known


def test_one_prompt_that_took_a_little_long_is_no_proof() -> None:
    """It may have waited for one of another picker; the next one tells."""
    for beyond, known in ((CLEAR_S - 0.1, False), (CLEAR_S + 0.1, True)):
        assert fed((TOLERANCE * 0.1 + beyond, 0.1)).known is known
    assert fed(*[(TOLERANCE * 0.1 + CLEAR_S - 0.1, 0.1)] * WITNESSES).known


def test_where_first_bytes_vary_more_is_asked_for() -> None:
    """The threshold is some usual deviations."""
    beyond = DEVIATIONS * 0.5
    assert not fed((beyond, 0.01), noise_s=0.5).known
    assert fed((beyond + 1.0, 0.01), noise_s=0.5).known


def test_a_prompt_that_may_have_found_no_cache_is_no_proof() -> None:
    """It took what it takes without one; several such in a row are believed."""
    misses = [(4.0, 0.1)] * WITNESSES
    assert not fed(*misses[:-1], cold_s=4.0).known
    assert fed(*misses, cold_s=4.0).known
    assert fed(misses[0], cold_s=4.0 / TOLERANCE - 0.1).known


def test_who_works_as_before_is_well_again() -> None:
    """After some good prompts nothing is left of it."""
    assert not fed((8.0, 2.0), *[(2.0, 2.0)] * 12).known


def test_a_short_prompt_that_hung_is_soon_outweighed() -> None:
    """However long it did; it is believed to be slow for the next few prompts."""
    assert fed((60.0, 0.1)).factor(AT) < 8.0
    assert not fed((60.0, 0.1), *[(0.5, 0.5)] * 5).known


def test_who_gets_faster_is_believed_on_the_way() -> None:
    """The latest prompts weigh most."""
    factors = [fed((8.0, 2.0), *[(4.0, 2.0)] * count).factor(AT) for count in range(6)]
    assert factors == sorted(factors, reverse=True)
    assert 2.0 < factors[-1] < 2.6


def test_it_is_forgotten_where_nothing_more_is_heard() -> None:
    """Half of it after ``HALF_S``, and all of it once it is small."""
    slowdown = fed((8.0, 2.0))
    before = slowdown.factor(AT)
    assert slowdown.factor(AT + HALF_S) == pytest.approx(1.0 + (before - 1.0) / 2.0)
    assert slowdown.factor(AT - 1.0) == before
    assert slowdown.factor(AT + 5 * HALF_S) == 1.0


SECONDS = st.floats(0.0, 1e4)


@given(expected=st.lists(SECONDS, max_size=40), share=st.floats(0.0, TOLERANCE))
def test_nobody_is_slow_within_the_tolerance(expected: list[float], share: float) -> None:
    """However many prompts there are, and whatever they take up to twice what was expected."""
    assert not fed(*[(share * each, each) for each in expected]).known


@given(
    prompts=st.lists(st.tuples(SECONDS, SECONDS, SECONDS, SECONDS), max_size=40),
    later=st.floats(0.0, 1e5),
)
def test_the_factor_is_bounded(
    prompts: list[tuple[float, float, float, float]], later: float
) -> None:
    """It is 1 or clearly more, never above the most, and never grows while nothing is heard."""
    slowdown = Slowdown()
    for at, (took_s, expected_s, cold_s, noise_s) in enumerate(prompts):
        slowdown.add(took_s, expected_s, cold_s=cold_s, noise_s=noise_s, at=float(at))
        factor = slowdown.factor(at)
        assert factor == 1.0 or LEAST <= factor <= MOST
        assert slowdown.known == (factor > 1.0)
        assert slowdown.factor(at + later) <= factor
    slowdown.clear()
    assert (slowdown.known, slowdown.factor(0.0)) == (False, 1.0)
