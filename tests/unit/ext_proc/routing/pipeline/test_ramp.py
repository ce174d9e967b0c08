"""The ramp is Envoy's slow-start formula."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.pipeline.slow_start import factor
from ext_proc.routing.values.settings import SlowStart


@pytest.mark.parametrize(
    ("age", "aggression", "expected"),
    [(15, 1.0, 0.25), (15, 2.0, 0.5), (0, 1.0, 0.1), (59, 1.0, 59 / 60), (60, 1.0, 1.0)],
)
def test_it_is_envoys_formula(age: float, aggression: float, expected: float) -> None:
    """A window of 60 s gives the values of Envoy's documentation."""
    ramp = SlowStart(window_s=60.0, aggression=aggression, min_weight=0.1)
    assert factor(ramp, 1000.0, 1000.0 + age) == pytest.approx(expected)


def test_the_age_has_envoys_floor() -> None:
    """Within its first second a replica counts as one second old."""
    assert factor(SlowStart(10.0, 1.0, 0.0), 1000.0, 1000.2) == pytest.approx(0.1)


def test_warm_means_one() -> None:
    """Without a joining time or a window the factor is 1."""
    assert factor(SlowStart(60.0), None, 5.0) == 1.0
    assert factor(SlowStart(0.0), 4.9, 5.0) == 1.0


@given(st.floats(0, 1e4), st.floats(0.01, 100), st.floats(0, 1), st.floats(-1e5, 1e5))
def test_it_stays_between_0_and_1(
    window: float, aggression: float, minimum: float, age: float
) -> None:
    """For any settings and clock it is above 0, so loads can be divided by it."""
    assert 0 < factor(SlowStart(window, aggression, minimum), 1e6, 1e6 + age) <= 1


@given(
    st.floats(0, 1e4), st.floats(0.01, 100), st.floats(0, 1), st.floats(0, 1e4), st.floats(0, 1e4)
)
def test_it_never_falls_with_age(
    window: float, aggression: float, minimum: float, age: float, more: float
) -> None:
    """The factor never falls as the age grows."""
    ramp = SlowStart(window, aggression, minimum)
    assert factor(ramp, 1e6, 1e6 + age) <= factor(ramp, 1e6, 1e6 + age + more) + 1e-12
