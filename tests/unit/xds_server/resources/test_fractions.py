"""Percentages."""

from __future__ import annotations

import pytest

from xds_server.resources.fractions import fraction


@pytest.mark.parametrize(("percent", "numerator"), [(100, 1_000_000), (0.0001, 1), (12.5, 125_000)])
def test_a_percentage_is_exact_to_a_millionth(percent: float, numerator: int) -> None:
    """Small shares are not rounded away."""
    result = fraction(percent)
    assert (result.numerator, result.denominator) == (numerator, result.MILLION)
