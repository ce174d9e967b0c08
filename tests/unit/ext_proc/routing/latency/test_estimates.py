"""Running estimates of a replica's answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.latency.estimates import Estimate, Served


def filled(*values):
    made = Estimate()
    for value in values:
        made.put(value)
    return made


def test_nothing_is_known_without_a_value():
    """An estimate without a value is None, never 0."""
    assert Estimate().value is None
    assert Served().describe() == {"first_byte_s": None, "bytes_per_s": None, "answers": 0}


def test_a_few_values_give_their_geometric_mean():
    """A value ten times smaller and one ten times larger cancel out."""
    assert filled(0.01, 1.0).value == pytest.approx(0.1)


def test_one_outlier_moves_it_by_a_fifth():
    """An answer of a minute among answers of 50 ms moves the estimate by about a fifth."""
    made = filled(*[0.05] * 20)
    made.put(60.0)
    assert made.value == pytest.approx(0.05 * 1.2214, rel=0.01)


def test_it_follows_a_change_that_lasts():
    """After thirty answers that are ten times slower the estimate has followed."""
    made = filled(*[0.05] * 50, *[0.5] * 30)
    assert 0.4 < made.value < 0.5


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_it_stays_between_the_least_and_the_most(values):
    """Clipping never makes the estimate overshoot."""
    made = filled(*values)
    floor = [max(value, 1e-4) for value in values]
    assert min(floor) * 0.999 <= made.value <= max(floor) * 1.001
    made.clear()
    assert made.value is None
