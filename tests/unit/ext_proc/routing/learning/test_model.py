"""The linear model of cost."""

from __future__ import annotations

import random
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.learning.model import BOUND, MOST_SPREAD, Linear


def test_it_finds_a_line_through_noise() -> None:
    """A thousand samples give the weights within a few percent."""
    rng, model = random.Random(1), Linear(3)
    for _ in range(1000):
        x = [1.0, rng.random(), rng.random()]
        model.learn(x, 0.5 + 2.0 * x[1] - x[2] + rng.gauss(0.0, 0.1))
    assert model.weights == pytest.approx([0.5, 2.0, -1.0], abs=0.1)


def test_it_follows_a_change() -> None:
    """Old samples are forgotten."""
    rng, model = random.Random(1), Linear(2)
    for slope in (1.0, 3.0):
        for _ in range(20_000):
            x = [1.0, rng.random()]
            model.learn(x, slope * x[1])
    assert model.predict([1.0, 1.0]) == pytest.approx(3.0, abs=0.1)


def test_the_width_shrinks_where_samples_are() -> None:
    """A candidate without samples has the largest width, so LinUCB tries it."""
    model = Linear(2)
    before = model.width([1.0, 0.0])
    for _ in range(100):
        model.learn([1.0, 0.0], 1.0)
    assert model.width([1.0, 0.0]) < 0.2 * before
    assert model.width([0.0, 1.0]) >= before


@given(
    samples=st.lists(
        st.tuples(st.lists(st.floats(0, 5), min_size=3, max_size=3), st.floats(0, 10)),
        max_size=200,
    )
)
def test_weights_and_spread_stay_bounded(samples: list[tuple[list[float], float]]) -> None:
    """For any samples, weights and spread are finite and within their bounds."""
    model = Linear(3)
    for x, cost in samples:
        model.learn(x, cost)
        assert all(abs(weight) <= BOUND for weight in model.weights)
        assert sum(model.spread[at][at] for at in range(3)) <= 3 * MOST_SPREAD + 1e-9
        assert all(isfinite(each) for row in model.spread for each in row)
        assert all(model.spread[at][at] > 0 for at in range(3))


def test_one_outlier_moves_little() -> None:
    """A request that hung counts as a long one."""
    calm, shaken = Linear(2), Linear(2)
    for model in (calm, shaken):
        for number in range(100):
            model.learn([1.0, number % 7 / 7], 1.0)
    shaken.learn([1.0, 0.5], 1e9)
    assert shaken.predict([1.0, 0.5]) - calm.predict([1.0, 0.5]) < 0.1
