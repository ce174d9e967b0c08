"""Times to the first byte: once per request, whenever its entries come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.feedback.attempts import MAX_TOLD, AnswerTimes
from ext_proc.feedback.entries import Entry
from support.log_entries import entry

FINAL = entry(picks="", first_byte_s=0.9, first_at_s=0.95, lasted_s=1.1)


def running(lasted_s: float) -> Entry:
    """Return the intermediate entry of this age."""
    begun = lasted_s >= 0.95
    return FINAL._replace(
        final=False,
        lasted_s=lasted_s,
        first_byte_s=0.9 if begun else None,
        first_at_s=0.95 if begun else None,
    )


@given(ages=st.lists(st.floats(0.0, 5.0), max_size=6).map(sorted))
def test_a_request_tells_its_time_once(ages):
    """However late its intermediate entries come, and if none does."""
    times = AnswerTimes()
    told = [times.take(running(age), 7) for age in ages]
    told.append(times.take(FINAL._replace(lasted_s=5.1), 7))
    assert [each for each in told if each is not None] == [0.9]
    assert len(times) == 0


@pytest.mark.parametrize("entry", [running(0.9), running(1.0), FINAL])
def test_a_request_without_a_number_tells_nothing(entry):
    """It is no inference; nothing is kept of it either."""
    times = AnswerTimes()
    assert times.take(entry, None) is None
    assert len(times) == 0


def test_a_retried_request_has_no_time():
    """Its time is that of several replicas."""
    assert AnswerTimes().take(FINAL._replace(attempts=2), 7) is None


def test_a_request_that_failed_is_forgotten():
    """No further entry has its number."""
    times = AnswerTimes()
    times.take(running(1.0), 7)
    assert times.forget(7)
    assert not times.forget(7)
    assert len(times) == 0


def test_no_more_than_a_bounded_number_is_kept():
    """The oldest is dropped, and told again by its final entry."""
    times = AnswerTimes()
    for number in range(MAX_TOLD + 1):
        times.take(running(1.0), number)
    assert len(times) == MAX_TOLD
    assert times.take(FINAL, 0) == 0.9
    assert times.take(FINAL, 1) is None
