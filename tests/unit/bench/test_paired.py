"""Comparisons paired by seed."""

from __future__ import annotations

import random
import statistics

import pytest

from bench.report.paired import Compared, by_seed, difference, ratio


def test_only_common_seeds_count() -> None:
    """Only common seeds count; without any, the result is ``None``."""
    found = difference({0: 1.0, 1: 2.0}, {1: 0.5, 2: 9.0})
    assert found == Compared(1.5, None, None, 1)
    assert difference({0: 1.0}, {1: 1.0}) is None
    assert ratio({0: 0.0}, {0: 1.0}) is None


def test_the_interval_is_student_s() -> None:
    """Differences 1, 2, 3: mean 2, deviation 1, so 2 -+ 4.303 / sqrt(3)."""
    found = difference({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert found is not None
    assert found.low == pytest.approx(2 - 2.4843, abs=1e-3)
    assert found.high == pytest.approx(2 + 2.4843, abs=1e-3)


def test_the_interval_holds_what_it_says() -> None:
    """Of many comparisons of three seeds, about 95 in 100 intervals hold the true difference."""
    rng = random.Random(1)
    held = []
    for _ in range(2_000):
        found = difference({n: rng.gauss(5.0, 1.0) for n in range(3)}, dict.fromkeys(range(3), 0.0))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held.append(found.low <= 5.0 <= found.high)
    assert statistics.fmean(held) == pytest.approx(0.95, abs=0.02)


def test_below_is_told_only_where_it_is_clear() -> None:
    """The result is true below, false above, and ``None`` across the bound or without interval."""
    assert Compared(1.0, 0.9, 1.1, 3).below(1.2) is True
    assert Compared(1.0, 0.9, 1.1, 3).below(0.8) is False
    assert Compared(1.0, 0.9, 1.1, 3).below(1.0) is None
    assert Compared(1.0, None, None, 1).below(9.0) is None
    assert Compared(1.0, 1.0, 1.0, 3).below(1.0) is False


def test_numbers_are_found_by_seed() -> None:
    """Runs without the number are omitted."""
    rows = [{"seed": 0, "x": {"y": 1}}, {"seed": 1, "x": {"y": None}}, {"seed": 2, "x": {"y": 3}}]
    assert by_seed(rows, "x", "y") == {0: 1.0, 2: 3.0}
