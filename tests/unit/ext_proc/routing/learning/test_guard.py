"""The guard: when a learned policy may act, and what stops it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.learning.guard import (
    CONTROL_ENDS,
    JUDGE_EVERY,
    LEAST_CONTROL,
    LEAST_FAILURES,
    PICKS,
    TRIP_S,
    Guard,
    GuardState,
)
from ext_proc.routing.values.pool import EndpointKey

A, B, C = (EndpointKey(name, 1) for name in "abc")


def live() -> Guard:
    """Return a guard whose policy was proven at second 0."""
    guard = Guard()
    guard.proven(0.0)
    return guard


def end(guard: Guard, acting: list[float | None], control: list[float | None]) -> None:
    """Let requests end, those of the control share first."""
    for cost in control:
        guard.ended(cost, 1.0, control=True)
    for cost in acting:
        guard.ended(cost, 1.0, control=False)


def test_it_begins_in_the_shadow_and_goes_live_once_proven() -> None:
    """Each proof gives a new version, except while the policy is live."""
    guard = Guard()
    assert guard.state(0.0) is GuardState.SHADOW
    guard.trip("dark", 0.0)
    assert guard.state(0.0) is GuardState.SHADOW
    guard.proven(0.0)
    guard.proven(0.0)
    assert (guard.state(0.0), guard.version) == (GuardState.LIVE, 1)


def test_a_trip_lasts_ten_minutes_and_forgets_the_proof() -> None:
    """A proof does not shorten it, and afterwards the policy is in shadow mode."""
    guard = live()
    guard.trip("dark", 5.0)
    guard.proven(6.0)
    assert guard.state(5.0 + TRIP_S - 0.1) is GuardState.TRIPPED
    assert guard.describe(5.0)["tripped_for_s"] == TRIP_S
    assert guard.state(5.0 + TRIP_S) is GuardState.SHADOW
    guard.proven(5.0 + TRIP_S)
    assert (guard.state(1e4), guard.version) == (GuardState.LIVE, 2)


@pytest.mark.parametrize(("factor", "tripped"), [(1.19, False), (1.21, True)])
def test_a_slower_p99_trips(factor: float, tripped: bool) -> None:
    """It trips above 1.2 times the p99 of the control share."""
    guard = live()
    end(guard, [factor] * 1000, [1.0] * LEAST_CONTROL)
    assert (guard.state(1.0) is GuardState.TRIPPED) is tripped
    assert dict(guard.trips) == ({"slower": 1} if tripped else {})


@pytest.mark.parametrize(("failures", "tripped"), [(14, False), (17, True)])
def test_more_failures_trip(failures: int, tripped: bool) -> None:
    """They trip above 1.5 times the failures of the control share."""
    guard = live()
    acting: list[float | None] = [1.0] * (1000 - failures) + [None] * failures
    end(guard, acting + [None, *[1.0] * 99] * 1, [None, *[1.0] * (LEAST_CONTROL - 1)])
    assert (guard.state(1.0) is GuardState.TRIPPED) is tripped


def test_few_failures_or_a_small_control_share_do_not_trip() -> None:
    """Small samples are not compared, because they would trip it at random."""
    guard = live()
    end(guard, [None] * (LEAST_FAILURES - 1) + [1.0] * 1000, [1.0] * LEAST_CONTROL)
    assert guard.state(1.0) is GuardState.LIVE
    guard = live()
    end(guard, [9.0] * 1000, [1.0] * (LEAST_CONTROL - 1))
    assert guard.state(1.0) is GuardState.LIVE


def test_one_replica_may_not_take_all() -> None:
    """More than twice its share of the latest picks trips."""
    shares = [(A, 0.25), (B, 0.25), (C, 0.5)]
    guard = live()
    for number in range(PICKS * 4):
        guard.picked((A, B, C, C)[number % 4], shares, 1.0)
    assert guard.state(1.0) is GuardState.LIVE
    for _ in range(PICKS // 2 + 2):
        guard.picked(A, shares, 1.0)
    assert guard.trips == {"one-replica": 1}


@given(share=st.floats(0.5, 1.0))
def test_of_two_replicas_one_may_take_all(share: float) -> None:
    """With two replicas, twice a fair share is all requests, so it never trips."""
    guard = live()
    for _ in range(PICKS * 2):
        guard.picked(A, [(A, share), (B, 1 - share)], 1.0)
    assert guard.state(1.0) is GuardState.LIVE


@given(st.lists(st.tuples(st.one_of(st.none(), st.floats(0, 10)), st.booleans()), max_size=3000))
def test_windows_are_bounded(ends: list[tuple[float | None, bool]]) -> None:
    """The kept results are bounded for any number of requests."""
    guard = live()
    for cost, control in ends:
        guard.ended(cost, 1.0, control=control)
    shown = guard.describe(1.0)
    assert isinstance(shown["failures_control"], int)
    assert shown["failures_control"] <= CONTROL_ENDS
    if len(ends) < JUDGE_EVERY:
        assert guard.state(1.0) is GuardState.LIVE
