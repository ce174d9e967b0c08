"""Failed attempts that wait for the final entry of their request."""

from __future__ import annotations

from ext_proc.blame.evidence import Attempt, Ended
from ext_proc.feedback.attempts import MAX_ATTEMPTS, MAX_TICKETS, FailedAttempts, Tried


def tried(began: float = 0.0) -> Tried:
    return Tried(Attempt("10.0.0.1:1", Ended.BROKEN, True, False, False, 0), began, 0.0, 0.0)


def test_attempts_are_taken_once_in_the_order_of_their_beginnings():
    """Each attempt has a log stream's delay of its own."""
    failed = FailedAttempts()
    failed.add(7, tried(2.0))
    failed.add(7, tried(1.0))
    assert [each.began_unix_s for each in failed.take(7)] == [1.0, 2.0]
    assert failed.take(7) == []


def test_both_bounds_hold():
    """Requests whose final entry never comes are dropped, the oldest first."""
    failed = FailedAttempts()
    for number in range(MAX_TICKETS + 1):
        failed.add(number, tried())
    assert len(failed) == MAX_TICKETS
    assert failed.take(0) == []
    for _ in range(MAX_ATTEMPTS + 1):
        failed.add(1, tried())
    assert len(failed.take(1)) == MAX_ATTEMPTS
