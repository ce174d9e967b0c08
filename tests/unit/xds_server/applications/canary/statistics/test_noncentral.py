"""The noncentral hypergeometric distribution beside scipy's, which sums the whole range."""

from __future__ import annotations

from math import comb, exp, isclose, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom, nchypergeom_fisher

from xds_server.applications.canary.statistics.noncentral import (
    MAX_MEMO,
    log_likelihood_ratio,
    log_tilt,
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Draw the counts of a cell."""
    canary = draw(st.integers(0, 80))
    stable = draw(st.integers(1, 300))
    exceeding = draw(st.integers(0, canary + stable))
    least, most = max(0, exceeding - stable), min(canary, exceeding)
    return canary, stable, exceeding, draw(st.integers(least, most))


@settings(deadline=None, max_examples=60)
@given(tables(), st.integers(1, 30), st.sampled_from([-0.1, 0.1]))
def test_a_likelihood_ratio_is_the_exact_one(
    table: tuple[int, int, int, int], tenths: int, unit: float
) -> None:
    """Scipy's ``nchypergeom_fisher`` computes it; it ends the process for odds of 1 + 2e-16."""
    canary, stable, exceeding, seen = table
    odds = exp(tenths * unit)
    size = canary + stable
    slow = nchypergeom_fisher(size, canary, exceeding, odds).logpmf(seen)
    exact = slow - hypergeom(size, canary, exceeding).logpmf(seen)
    fast = log_likelihood_ratio(canary, stable, exceeding, seen, odds)
    assert isclose(fast, exact, rel_tol=1e-6, abs_tol=1e-6)


@pytest.mark.parametrize("odds", [0.1, 0.7, 1.0, 1.25, 12.0])
def test_the_mean_of_a_likelihood_ratio_is_one(odds: float) -> None:
    """Summed over all that may be seen, for a large cell whose sum is cut off."""
    canary, stable, exceeding = 3_000, 5_000, 900
    ways = [comb(canary, seen) * comb(stable, exceeding - seen) for seen in range(exceeding + 1)]
    mean = sum(
        exp(
            log(each)
            - log(comb(canary + stable, exceeding))
            + log_likelihood_ratio(canary, stable, exceeding, seen, odds)
        )
        for seen, each in enumerate(ways)
    )
    assert isclose(mean, 1.0, rel_tol=1e-6)


def test_a_cell_with_one_arm_shows_nothing() -> None:
    """All that exceed are that arm's for certain."""
    for odds in (0.3, 5.0):
        assert isclose(log_likelihood_ratio(0, 40, 9, 0, odds), 0.0, abs_tol=1e-12)
        assert isclose(log_likelihood_ratio(40, 0, 9, 9, odds), 0.0, abs_tol=1e-12)
        assert isclose(log_likelihood_ratio(40, 40, 0, 0, odds), 0.0, abs_tol=1e-12)


def test_odds_of_one_are_no_evidence() -> None:
    """The tilt by 1 is the sum of all probabilities."""
    assert isclose(log_tilt(50, 70, 33, 1.0), log(1.0), abs_tol=1e-9)


def test_what_is_remembered_is_bounded() -> None:
    """Cells of a long rollout would otherwise fill the memory."""
    assert log_tilt.cache_info().maxsize == MAX_MEMO
