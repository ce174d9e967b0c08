"""Ejection of replicas whose work makes no progress."""

from __future__ import annotations

from ext_proc.routing.health.ejection_record import Cause, Phase
from support.ejections import Case, key


def test_work_in_flight_without_progress_is_frozen(build):
    """Thirty seconds without progress while peers progress eject; progress half-opens at once."""
    case = Case(build)
    for second in range(29):
        case.ejection.alive(key(1), second)
        case.ejection.sweep({key(0): 1, key(1): 1}, second)
    assert not case.reported
    case.ejection.alive(key(1), 30.0)
    case.ejection.sweep({key(0): 1, key(1): 1}, 30.0)
    assert case.reported == [(key(0), Cause.FROZEN)]
    case.ejection.alive(key(0), 31.0)
    assert case.phase(0) is Phase.HALF_OPEN


def test_when_no_replica_makes_progress_none_is_frozen(build):
    """Long answers without a byte in between look the same on all replicas."""
    case = Case(build)
    for second in range(0, 100, 5):
        case.ejection.sweep({key(number): 1 for number in range(4)}, float(second))
    assert not case.reported


def test_a_frozen_replica_is_found_although_all_clients_wait_for_it(build):
    """Its peers made progress after it stopped, and then became idle."""
    case = Case(build)
    case.ejection.sweep({key(0): 1}, 0.0)
    case.ejection.alive(key(1), 7.0)
    for second in range(1, 40):
        case.ejection.sweep({key(0): 4}, float(second))
    assert case.reported == [(key(0), Cause.FROZEN)]


def test_replicas_that_stop_together_are_not_frozen(build):
    """In an outage one replica is the last to stop; this does not eject the first."""
    case = Case(build)
    case.ejection.sweep({key(number): 1 for number in range(4)}, 0.0)
    for number in range(4):
        case.ejection.alive(key(number), 1.0 + number)
    for second in range(5, 100, 5):
        case.ejection.sweep({key(number): 1 for number in range(4)}, float(second))
    assert not case.reported


def test_an_idle_replica_is_never_frozen(build):
    """A replica without continuous work in flight is not frozen."""
    case = Case(build)
    for second in range(0, 100, 5):
        case.ejection.alive(key(1), second)
        case.ejection.sweep({key(0): second % 2}, float(second))
    assert not case.reported


# --- Failures that a request may have caused -----------------------------------------------------


def test_attempts_cut_by_our_bound_show_a_frozen_replica_although_nothing_is_in_flight(build):
    """The requests have moved on, so the ledger shows no work there."""
    case = Case(build)
    for second in range(40):
        case.ejection.alive(key(1), float(second))
        if second % 3 == 2:
            case.ejection.kept_waiting(key(0), 2.0, float(second))
        case.ejection.sweep({}, float(second))
    assert case.reported == [(key(0), Cause.FROZEN)]


def test_attempts_cut_by_our_bound_are_no_failures(build):
    """A replica with signs of life is never frozen, however many honest long prompts it has."""
    case = Case(build)
    for second in range(100):
        for number in range(4):
            case.ejection.alive(key(number), float(second))
        for _ in range(20):
            case.ejection.kept_waiting(key(0), 0.9, float(second) + 0.95)
        case.ejection.sweep({}, float(second))
    assert not case.reported


def test_a_frozen_replica_that_keeps_waiting_again_goes_back(build):
    """Only while it is half open as a frozen one."""
    case = Case(build)
    for second in range(31):
        case.ejection.alive(key(1), float(second))
        case.ejection.sweep({key(0): 1}, float(second))
    assert case.phase(0) is Phase.EJECTED
    case.ejection.barred(50.0)
    assert case.phase(0) is Phase.HALF_OPEN
    case.ejection.kept_waiting(key(0), 5.0, 55.0)
    assert case.phase(0) is Phase.EJECTED
