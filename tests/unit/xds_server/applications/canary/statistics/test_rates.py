"""Evidence about rates: exact values, nulls that hold, and how soon it grows."""

from __future__ import annotations

import itertools
import random
from math import exp, isclose, log, prod

import pytest

from xds_server.applications.canary.statistics.mixture import log_mean, log_weighted
from xds_server.applications.canary.statistics.rates import (
    BELOW,
    BETTER,
    WORSE,
    FailureCell,
    interval,
    log_below,
    log_not_worse,
    log_worse,
)

CELLS = [
    FailureCell(0.05, 0.95, 3, 20),
    FailureCell(0.05, 0.75, 1, 2),
    FailureCell(0.25, 0.75, 9, 12),
]


def exact(cells: list[FailureCell], null: float, multiples: tuple[float, ...]) -> float:
    """Multiply probabilities one failure at a time, as the definition says."""
    found = []
    for multiple in multiples:
        product = 1.0
        for a, b, canary, stable in cells:
            at_null = null * a / (null * a + b)
            at_other = null * multiple * a / (null * multiple * a + b)
            product *= (at_other / at_null) ** canary
            product *= ((1.0 - at_other) / (1.0 - at_null)) ** stable
        found.append(product)
    return sum(found) / len(found)


@pytest.mark.parametrize("margin", [1.0, 1.5, 3.0])
def test_both_e_values_are_the_products_of_their_definition(margin: float) -> None:
    """Logarithms change nothing."""
    assert isclose(exp(log_worse(CELLS, margin)), exact(CELLS, margin, WORSE))
    assert isclose(exp(log_not_worse(CELLS, margin)), exact(CELLS, margin, BETTER))


@pytest.mark.parametrize("share", [0.01, 0.25, 0.5])
@pytest.mark.parametrize("log_e", [log_worse, log_not_worse])
def test_the_mean_at_the_margin_is_one(share: float, log_e) -> None:
    """Over all outcomes of seven failures, by their probabilities."""
    theta = 1.5 * share / (1.5 * share + 1.0 - share)
    mean = 0.0
    for canary in itertools.product((True, False), repeat=7):
        cell = FailureCell(share, 1.0 - share, sum(canary), 7 - sum(canary))
        mean += prod(theta if each else 1.0 - theta for each in canary) * exp(log_e([cell], 1.5))
    assert isclose(mean, 1.0)


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.5])
def test_a_canary_within_the_margin_is_seldom_called_worse_whenever_one_looks(
    ratio: float,
) -> None:
    """400 rollouts with a look after each tenth failure, over two steps."""
    rng = random.Random(20261124)
    wrong = sum(_reaches(rng, ratio, log_worse, 200) for _ in range(400))
    assert wrong <= 26, wrong


def test_a_canary_at_the_margin_is_seldom_called_good_whenever_one_looks() -> None:
    """The same looks, for the other side."""
    rng = random.Random(20261125)
    wrong = sum(_reaches(rng, 1.5, log_not_worse, 200) for _ in range(400))
    assert wrong <= 26, wrong


def _reaches(rng: random.Random, ratio: float, log_e, failures: int) -> bool:
    """Return whether the evidence reaches 20 at any of the looks, one after each tenth failure."""
    counts = {0.05: [0, 0], 0.25: [0, 0]}
    for number in range(failures):
        share = 0.05 if number < failures // 3 else 0.25
        theta = ratio * share / (ratio * share + 1.0 - share)
        counts[share][rng.random() >= theta] += 1
        if number % 10 == 9:
            cells = [FailureCell(a, 1.0 - a, *both) for a, both in counts.items()]
            if log_e(cells, 1.5) >= log(20.0):
                return True
    return False


def test_a_canary_that_fails_always_is_found_after_a_few_sessions() -> None:
    """At one per cent of the sessions, beside a stable that fails one in a hundred."""
    found = next(
        n for n in range(1, 50) if log_worse([FailureCell(0.01, 0.99, n, 1)], 1.5) >= log(50.0)
    )
    assert found <= 3


def test_a_moved_session_changes_what_is_expected_of_stable() -> None:
    """After a step from 25 to 50 %, only half of all sessions are left with stable."""
    at_once = FailureCell(0.25, 0.75, 25, 75)
    later = FailureCell(0.25, 0.5, 25, 50)
    assert isclose(log_worse([at_once], 1.0), log_worse([FailureCell(0.25, 0.75, 25, 75)], 1.0))
    assert log_worse([later], 1.0) < 0.0  # 25 of 75 is just what is expected
    assert log_worse([FailureCell(0.25, 0.75, 25, 50)], 1.0) > log_worse([later], 1.0)


def test_where_nothing_fails_the_floor_shows_that_the_canary_is_good() -> None:
    """With ratios alone such a rollout would never end."""
    assert log_not_worse([], 1.5) == pytest.approx(0.0)
    assert log_below(1_000, 0, 0.005) >= log(20.0)
    assert log_below(200, 0, 0.005) < log(20.0)


@pytest.mark.parametrize("rate", [0.005, 0.02])
def test_a_canary_at_the_floor_is_seldom_called_below_it(rate: float) -> None:
    """500 rollouts of 4,000 sessions, with a look after each hundred."""
    rng = random.Random(7)
    wrong = 0
    for _ in range(500):
        failed = 0
        for number in range(1, 41):
            failed += sum(rng.random() < rate for _ in range(100))
            if log_below(100 * number, failed, 0.005) >= log(20.0):
                wrong += 1
                break
    assert wrong <= 33, wrong


def test_the_floor_has_the_mean_one_at_its_rate() -> None:
    """Over all numbers of failures among 40 sessions."""
    from math import comb  # noqa: PLC0415 - here alone

    floor, n = 0.1, 40
    mean = sum(
        comb(n, k) * floor**k * (1 - floor) ** (n - k) * exp(log_below(n, k, floor))
        for k in range(n + 1)
    )
    assert isclose(mean, 1.0)
    assert BELOW[0] == 0.0


def test_an_interval_holds_the_ratio_that_was_seen() -> None:
    """It narrows with more failures, and without any it is as wide as can be said."""
    low, high = interval([FailureCell(0.5, 0.5, 200, 100)], 40.0)
    assert low < 2.0 < high
    assert low > 1.2
    wide_low, wide_high = interval([FailureCell(0.5, 0.5, 20, 10)], 40.0)
    assert wide_low < low < high < wide_high
    assert interval([], 40.0) == pytest.approx((1e-3, 1e3), rel=1e-3)


def test_means_of_logarithms_leave_no_float_behind() -> None:
    """Products of a long rollout are far beyond a float."""
    assert log_mean([2_000.0, -2_000.0]) == pytest.approx(2_000.0 - log(2.0))
    assert log_weighted([(0.25, -5_000.0), (0.75, -5_000.0)]) == pytest.approx(-5_000.0)
    with pytest.raises(ValueError, match="at least one"):
        log_mean([])
