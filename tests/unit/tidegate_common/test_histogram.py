"""Logarithmic buckets and their quantiles."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_common.histogram import BUCKETS, ERROR, LEAST_S, bucket_of, middle, quantile

SECONDS = st.floats(LEAST_S, 3000.0)


@given(st.lists(SECONDS, min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_a_quantile_is_within_its_error(values: list[float], share: float) -> None:
    """Operators read p50 and p99, so their error must be what the page says."""
    counts: dict[int, int] = {}
    for value in values:
        counts[bucket_of(value)] = counts.get(bucket_of(value), 0) + 1
    true = sorted(values)[max(1, ceil(share * len(values))) - 1]
    found = quantile(counts, share)
    assert found == pytest.approx(true, rel=ERROR + 1e-6)


@given(st.floats(0.0, 1e9))
def test_every_duration_has_a_bucket(seconds: float) -> None:
    """The number of buckets is bounded, whatever the duration."""
    assert 0 <= bucket_of(seconds) < BUCKETS


def test_durations_outside_the_range_are_in_the_outer_buckets() -> None:
    """Below a millisecond and above an hour only the order is known."""
    assert bucket_of(0.0) == 0
    assert bucket_of(1e6) == BUCKETS - 1
    assert middle(0) == LEAST_S
    assert middle(10**6) == middle(BUCKETS - 1)


def test_nothing_counted_has_no_quantile() -> None:
    """Unknown is None, never 0."""
    assert quantile({}, 0.5) is None
