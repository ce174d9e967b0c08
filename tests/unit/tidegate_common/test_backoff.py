"""Delays between attempts."""

from __future__ import annotations

import pytest

from tidegate_common.backoff import FIRST_S, LONGEST_S, Backoff


def test_grows_to_its_bound():
    """Each delay doubles the one before, up to the longest."""
    backoff = Backoff(lambda: 1.0)
    assert [backoff.delay_s() for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, *[LONGEST_S] * 3]


def test_jitter_takes_up_to_half():
    """Two clients that were disconnected together do not reconnect together."""
    assert Backoff(lambda: 0.0).delay_s() == pytest.approx(FIRST_S / 2)


def test_reset():
    """After a success the delays start again."""
    backoff = Backoff(lambda: 1.0)
    backoff.delay_s()
    backoff.delay_s()
    backoff.reset()
    assert backoff.delay_s() == FIRST_S


def test_the_last_bound_is_the_callers() -> None:
    """A server that serves a whole cluster is asked less often than one of our own."""
    backoff = Backoff(lambda: 0.999, longest_s=7.0)
    assert max(backoff.delay_s() for _ in range(20)) == pytest.approx(7.0, rel=0.01)
