"""Statistics of the demo's verdicts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.demo.stats import binomial_interval, percentile


@pytest.mark.parametrize(
    ("percent", "expected"), [(1, 1.0), (50, 2.0), (51, 3.0), (75, 3.0), (99, 4.0), (100, 4.0)]
)
def test_percentile_is_the_nearest_rank(percent: float, expected: float) -> None:
    """The percentile is the smallest value that the given percentage does not exceed."""
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == expected


@pytest.mark.parametrize("percent", [0, -1, 100.5])
def test_percentile_refuses_what_is_no_percentage(percent: float) -> None:
    """A percentage outside (0, 100] is refused."""
    with pytest.raises(ValueError, match="percentile"):
        percentile([1.0], percent)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60), st.floats(0.1, 100))
def test_percentile_is_one_of_the_values(values: list[float], percent: float) -> None:
    """A percentile is one of the values, and at least that share does not exceed it."""
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100 - 1e-9


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    # Reference values of the Clopper-Pearson interval at 95 %.
    [(0, 10, 0.0, 0.30850), (5, 10, 0.18709, 0.81291), (10, 10, 0.69150, 1.0)],
)
def test_interval_matches_published_values(hits: int, trials: int, low: float, high: float) -> None:
    """Intervals equal published ones to five digits."""
    found = binomial_interval(hits, trials, 0.95)
    assert found.low == pytest.approx(low, abs=1e-5)
    assert found.high == pytest.approx(high, abs=1e-5)


@given(st.integers(1, 400), st.data())
def test_interval_holds_the_observed_share(trials: int, data: st.DataObject) -> None:
    """The observed share lies in its interval, and the interval in [0, 1]."""
    hits = data.draw(st.integers(0, trials))
    found = binomial_interval(hits, trials)
    assert 0 <= found.low <= hits / trials <= found.high <= 1


@pytest.mark.parametrize(("hits", "trials"), [(-1, 5), (6, 5), (0, 0)])
def test_interval_refuses_impossible_counts(hits: int, trials: int) -> None:
    """Impossible counts raise."""
    with pytest.raises(ValueError, match="fraction"):
        binomial_interval(hits, trials)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 2.0])
def test_interval_refuses_impossible_confidence(confidence: float) -> None:
    """A confidence must lie between 0 and 1."""
    with pytest.raises(ValueError, match="confidence"):
        binomial_interval(1, 2, confidence)
