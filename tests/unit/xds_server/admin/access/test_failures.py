"""Peers that fail to prove who they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xds_server.admin.access.authority import MAX_FAILURES, MAX_PEERS, WINDOW_S, Failures


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_peer_that_fails_too_often_is_refused_for_a_while() -> None:
    """Until the window has passed since its last failure; another peer is not."""
    clock = Clock()
    failures = Failures(clock)
    for _ in range(MAX_FAILURES):
        assert not failures.blocked("a")
        failures.note("a")
    assert failures.blocked("a")
    assert not failures.blocked("b")
    clock.now = WINDOW_S - 0.1
    assert failures.blocked("a")
    clock.now = WINDOW_S
    assert not failures.blocked("a")
    assert not len(failures)


def test_rare_failures_refuse_nobody() -> None:
    """A program with an old token in one of its places goes on with the others."""
    clock = Clock()
    failures = Failures(clock)
    for _ in range(3 * MAX_FAILURES):
        failures.note("a")
        clock.now += 1.01 * WINDOW_S / (MAX_FAILURES - 1)
        assert not failures.blocked("a")


def test_peers_are_bounded() -> None:
    """The one that failed the longest ago is forgotten."""
    failures = Failures(lambda: 0.0)
    for number in range(MAX_PEERS):
        failures.note(str(number))
    failures.note("0")
    failures.note("new")
    assert len(failures) == MAX_PEERS
    for _ in range(MAX_FAILURES - 2):
        failures.note("0")
    assert failures.blocked("0")


@given(st.lists(st.floats(0, 100), max_size=60))
def test_who_is_refused_has_failed_often_in_the_window(steps: list[float]) -> None:
    """Never for fewer failures, and never longer than the window after the last."""
    clock, times = Clock(), []
    failures = Failures(clock)
    for step in steps:
        clock.now += step
        if failures.blocked("a"):
            recent = times[-MAX_FAILURES:]
            assert len(recent) == MAX_FAILURES
            assert recent[-1] - recent[0] < WINDOW_S
            assert clock.now - recent[-1] < WINDOW_S
        failures.note("a")
        times.append(clock.now)
