"""How often pages are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.telemetry.pacing import MAX_BACKOFF, PAGES_PER_S, Pacing


@pytest.mark.parametrize(("failures", "factor"), [(0, 1), (1, 2), (2, 4), (3, 4), (10**6, 4)])
def test_backoff(failures, factor):
    """A failing replica is read less often, down to a bound."""
    interval = Pacing(fast_s=1.0).interval_s(busy=True, failures=failures, stretch=1.0)
    assert interval == factor <= MAX_BACKOFF


def test_an_idle_replica_is_never_read_more_often_than_a_loaded_one():
    """If the short interval is set above the long one, it holds for both."""
    pacing = Pacing(fast_s=3.0, slow_s=1.0)
    assert pacing.interval_s(busy=False, failures=0, stretch=1.0) == 3.0


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_the_budget_holds(busy, idle):
    """A large fleet costs at most the budget, and a small one is not slowed."""
    pacing = Pacing()
    stretch = pacing.stretch(busy, idle)
    rate = busy / pacing.interval_s(busy=True, failures=0, stretch=stretch)
    rate += idle / pacing.interval_s(busy=False, failures=0, stretch=stretch)
    assert rate <= PAGES_PER_S * 1.0001
    assert stretch == 1.0 or rate > PAGES_PER_S * 0.999
