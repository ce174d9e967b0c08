"""The simulated canaries: their worlds, their rules, their table."""

from __future__ import annotations

import pytest

from bench.compare.canary import (
    CONTROLLERS,
    KNOWN_MIN,
    Sessions,
    World,
    controlled,
    found,
    margins,
    measured,
    table,
    upper,
)


def test_a_minute_counts_each_failing_session_once() -> None:
    """In the arm that it began in, with the shares in force then and when it failed."""
    drawn = Sessions(World("w", 20.0, 0.1, 0.1, requests=30), 1)
    minutes = [drawn.minute(now, 0.5) for now in range(40)]
    failures = [minute.failures.get((0.5, 0.5), (0, 0)) for minute in minutes]
    begun = [sum(minute.begun[arm] for minute in minutes) for arm in (0, 1)]
    for arm in (0, 1):
        assert 0.08 < sum(both[arm] for both in failures) / begun[arm] < 0.11
    known = [minute.known for minute in minutes]
    assert known[:KNOWN_MIN] == [(0, 0)] * KNOWN_MIN
    assert known[KNOWN_MIN][0] == minutes[0].begun[0]


def test_a_step_censors_the_sessions_that_it_moves() -> None:
    """They are of neither arm; those that it leaves have other shares."""
    drawn = Sessions(World("w", 20.0, 1.0, 1.0, requests=30), 1)
    first = drawn.minute(0, 0.2)
    then = drawn.minute(1, 0.5)
    assert set(first.failures) == {(0.2, 0.8)}
    assert set(then.failures) == {(0.2, 0.5), (0.5, 0.5)}
    canary, stable = then.failures[0.2, 0.5]
    assert stable / canary == pytest.approx(2.5, rel=0.3)


@pytest.mark.parametrize("controller", sorted(CONTROLLERS))
def test_a_canary_that_always_fails_is_rolled_back_by_all(controller: str) -> None:
    """And the same seed ends the same."""
    world = World("all fail", 20.0, canary=1.0)
    ended = CONTROLLERS[controller](world, 7)
    assert ended.end == "back"
    assert ended == CONTROLLERS[controller](world, 7)


def test_a_good_canary_is_promoted() -> None:
    """With failures and times, in the least time of its three steps."""
    ended = controlled(World("good, never fails", 20.0, 0.0, 0.0), 3)
    assert (ended.end, ended.minutes, ended.failed) == ("promoted", 30, 0)


def test_the_worlds_cover_what_is_claimed() -> None:
    """Base rates of 0.1 to 20 %, 1 to 200 sessions/s, 1 to 30 requests."""
    drawn = [*margins(), *found()]
    assert {0.001, 0.01, 0.05, 0.2} <= {each.base for each in drawn}
    assert {each.rate for each in drawn} == {1.0, 20.0, 200.0}
    assert {each.requests for each in drawn} == {1, 8, 30}
    for name in ("cold", "daily", "mixed"):
        assert any(getattr(each, name) for each in drawn)


def test_the_table_has_bounds_and_what_is_undecided() -> None:
    """A share of few runs is not much better than its bound."""
    row = measured(World("w", 20.0, canary=1.0), "tidegate", 2)
    assert "100.0 % (≤ 100.0) | 0.0 % (≤ 57.5) | 0 %" in table([row])
    assert upper(50, 1_000) == pytest.approx(0.0625, abs=1e-3)
