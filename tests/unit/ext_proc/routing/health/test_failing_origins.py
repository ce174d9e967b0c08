"""Where requests of one origin fail."""

from __future__ import annotations

from ext_proc.routing.health.failing_origins import MAX_ORIGINS, FailingOrigins, Recurrence
from ext_proc.routing.values.pool import EndpointKey

R0, R1 = EndpointKey("r0", 1), EndpointKey("r1", 1)
WINDOW = 5.0


def test_an_origin_counts_once_on_one_replica_and_not_at_all_on_two():
    """Within the window; then it begins anew."""
    failing = FailingOrigins()
    assert failing.failed(7, R0, 0.0, WINDOW) is Recurrence.FIRST
    assert failing.failed(7, R0, 1.0, WINDOW) is Recurrence.AGAIN
    assert failing.failed(7, R1, 2.0, WINDOW) is Recurrence.ALIKE
    assert failing.failed(7, R0, 3.0, WINDOW) is Recurrence.ALIKE
    assert failing.failed(7, R0, 5.1, WINDOW) is Recurrence.FIRST
    assert failing.failed(8, R0, 5.1, WINDOW) is Recurrence.FIRST
    assert failing.failed(9, R0, 5.2, WINDOW) is Recurrence.FIRST


def test_an_origin_avoids_the_replica_on_which_it_failed_often_enough():
    """And only that one, until it fails elsewhere or the window ends."""
    failing = FailingOrigins()
    for _ in range(3):
        assert failing.avoided(7, 0.0, WINDOW, 3) is None
        failing.failed(7, R0, 0.0, WINDOW)
    assert failing.avoided(7, 5.0, WINDOW, 3) == R0
    assert failing.avoided(8, 5.0, WINDOW, 3) is None
    failing.failed(7, R1, 5.0, WINDOW)
    assert failing.avoided(7, 5.0, WINDOW, 3) is None
    assert failing.avoided(7, 5.1, WINDOW, 3) is None
    assert not failing


def test_origins_are_bounded_and_forgotten():
    """The oldest are dropped at the bound, and all after the window."""
    failing = FailingOrigins()
    for origin in range(MAX_ORIGINS + 1):
        failing.failed(origin, R0, 0.0, WINDOW)
    assert len(failing) == MAX_ORIGINS
    failing.expire(WINDOW, WINDOW)
    assert len(failing) == MAX_ORIGINS
    failing.expire(WINDOW + 0.1, WINDOW)
    assert not failing
