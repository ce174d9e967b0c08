"""Ejection of replicas whose work makes no progress."""

from __future__ import annotations

from itertools import product

import pytest

from ext_proc.routing.health.ejection_record import Cause, Phase
from ext_proc.routing.health.standing import Stands
from support.ejections import Case, key


def test_a_frozen_replica_is_found_although_all_clients_wait_for_it(build):
    """Its peers made progress after it stopped, and then became idle."""
    case = Case(build)
    case.ejection.probed(key(0), ready=False)
    case.ejection.sweep({key(0): 1}, 0.0)
    case.ejection.alive(key(1), 7.0)
    for second in range(1, 40):
        case.ejection.sweep({key(0): 4}, float(second))
    assert case.reported == [(key(0), Cause.FROZEN)]


def test_replicas_that_stop_together_are_not_frozen(build):
    """In an outage one replica is the last to stop; this does not eject the first."""
    case = Case(build)
    for number in range(4):
        case.ejection.probed(key(number), ready=False)
    case.ejection.sweep({key(number): 1 for number in range(4)}, 0.0)
    for number in range(4):
        case.ejection.alive(key(number), 1.0 + number)
    for second in range(5, 100, 5):
        case.ejection.sweep({key(number): 1 for number in range(4)}, float(second))
    assert not case.reported


def test_an_idle_replica_is_never_frozen(build):
    """A replica without continuous work in flight is not frozen."""
    case = Case(build)
    case.ejection.probed(key(0), ready=False)
    for second in range(0, 100, 5):
        case.ejection.alive(key(1), second)
        case.ejection.sweep({key(0): second % 2}, float(second))
    assert not case.reported


@pytest.mark.parametrize("ready", [True, None])
def test_work_without_progress_alone_is_no_proof(build, ready):
    """An honest request may take as long as that, and an upload may wait for its client."""
    case = Case(build)
    if ready is not None:
        case.ejection.probed(key(0), ready=ready)
    for second in range(100):
        case.ejection.alive(key(1), float(second))
        case.ejection.sweep({key(0): 50}, float(second))
    assert not case.reported


class Standing:
    """Requests that stand on the first replica of a pool whose peers answer within ``usual_s``."""

    def __init__(self, build, usual_s: float = 0.5, others: tuple[int, ...] = (1, 2, 3)) -> None:
        self.case = Case(build)
        for number, _ in product(range(1, 4), range(30)):
            client = others[number % len(others)]
            self.case.ejection.good(key(number), usual_s, 0.0, 1, client)

    def frozen(self, *clients: int, seconds: int = 40, since: float = 0.0) -> bool:
        """Return whether standing requests of these clients eject the replica."""
        stands = [Stands(key(0), client, since, 0.0) for client in clients]
        for second in range(seconds):
            for client in (1, 2):
                self.case.ejection.good(key(client), 0.5, float(second), 1, client)
            self.case.ejection.sweep({key(0): len(clients)}, float(second), {key(0): stands})
        return self.case.reported == [(key(0), Cause.FROZEN)]


@pytest.mark.parametrize(
    ("clients", "found"), [((5,), False), ((5,) * 50, False), ((5, 6), True), ((5, 5, 6), True)]
)
def test_whole_requests_of_two_clients_prove_it(build, clients, found):
    """One client may have sent any number of long requests, beside others that are answered."""
    assert Standing(build).frozen(*clients) is found


def test_requests_that_came_late_prove_nothing_yet(build):
    """Each has to stand for the whole time, from when its client had sent it."""
    assert not Standing(build).frozen(5, 6, since=20.0)
    assert Standing(build).frozen(5, 6, since=20.0, seconds=60)


def test_where_answers_usually_take_long_standing_requests_prove_nothing(build):
    """A tenth of the time is short."""
    case = Standing(build, 4.0).case
    stands = [Stands(key(0), client, 0.0, 0.0) for client in (5, 6)]
    for second in range(50):
        case.ejection.alive(key(1), float(second))
        case.ejection.sweep({key(0): 2}, float(second), {key(0): stands})
    assert not case.reported


@pytest.mark.parametrize(("times", "found"), [(2, False), (3, True)])
def test_one_client_alone_needs_more_of_them(build, times, found):
    """Behind a gateway that nothing tells apart all callers are one client."""
    standing = Standing(build, others=(5,))
    stands = [Stands(key(0), 5, 0.0, 0.0)] * times
    for second in range(40):
        standing.case.ejection.alive(key(1), float(second))
        standing.case.ejection.sweep({key(0): times}, float(second), {key(0): stands})
    assert bool(standing.case.reported) is found


# --- Failures that a request may have caused -----------------------------------------------------


def test_attempts_cut_by_our_bound_show_a_frozen_replica_although_nothing_is_in_flight(build):
    """The requests have moved on, so the ledger shows no work there."""
    case = Case(build)
    for second in range(40):
        case.ejection.alive(key(1), float(second))
        if second % 3 == 2:
            case.ejection.kept_waiting(key(0), 2.0, float(second), second % 2)
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
    case.ejection.probed(key(0), ready=False)
    for second in range(31):
        case.ejection.alive(key(1), float(second))
        case.ejection.sweep({key(0): 1}, float(second))
    assert case.phase(0) is Phase.EJECTED
    case.ejection.barred(50.0)
    assert case.phase(0) is Phase.HALF_OPEN
    case.ejection.kept_waiting(key(0), 5.0, 55.0)
    assert case.phase(0) is Phase.EJECTED


def test_requests_of_a_frozen_replica_stand_on_a_hung_one(build):
    """All that it has when it is ejected; when it is tried again, what stands as long again."""
    case = Case(build)
    case.ejection.probed(key(0), ready=False)
    stands = Stands(key(0), 1, 0.0, 30.0, "llm")
    case.ejection.alive(key(1), 0.0)
    case.ejection.sweep({key(0): 1, key(1): 1}, 0.0)
    assert case.ejection.hung(stands, 29.0) is None
    case.ejection.alive(key(1), 30.0)
    case.ejection.sweep({key(0): 1, key(1): 1}, 30.0)
    assert case.ejection.frozen()
    assert case.ejection.hung(stands, 30.0) is True
    assert case.ejection.hung(stands._replace(key=key(1)), 30.0) is None
    case.ejection.probed(key(0), ready=True)
    assert case.ejection.hung(stands, 30.0) is False
    case.ejection.alive(key(0), 31.0)
    tried = stands._replace(since=31.0)
    assert case.ejection.hung(tried, 60.0) is None
    assert case.ejection.hung(tried, 61.0) is False
