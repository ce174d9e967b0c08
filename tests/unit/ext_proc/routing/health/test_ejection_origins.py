"""Ejection where a request may itself have caused its failures."""

from __future__ import annotations

import random

import pytest

from ext_proc.blame.origins import number_of
from ext_proc.routing.health.ejection_record import Cause, Phase
from ext_proc.routing.health.experiment import identity
from ext_proc.routing.values.settings import Outlier
from support.ejections import RULES, Case, key


class Callers(Case):
    """Answers to callers, one each 0.1 s."""

    def __init__(self, build, count: int = 4, rules: Outlier = RULES) -> None:
        super().__init__(build, count, rules)
        self.now = 0.0
        self.count = count
        self.rng = random.Random(1)

    def ask(self, number: int, origin: int, sick: int | None = None, *, drawn: bool = False) -> int:
        """Answer a request that is picked for a replica, where chance sends it; return where."""
        found = self.ejection.assign(key(number), self.now, self.rng, drawn=drawn)
        if found is not None:
            subject, gets_it = found
            origin = number_of(identity(subject, drawn=drawn, gets_it=gets_it))
            at = int(subject.id[1:])
            number = at if gets_it else (at + 1) % self.count if number == at else number
        if number == sick:
            self.bad(number, origin)
        else:
            self.good(number, origin)
        return number

    def bad(self, number: int, origin: int) -> None:
        self.now += 0.1
        self.ejection.bad(key(number), self.now, answered=True, origin=origin)

    def good(self, number: int, origin: int = 0) -> None:
        self.now += 0.1
        self.ejection.good(key(number), 0.1, self.now)
        if origin:
            self.ejection.well(key(number), origin, self.now)


def test_failures_of_one_origin_never_eject(build):
    """Two hundred of them, with peers that answer others."""
    case = Callers(build)
    for _ in range(200):
        case.bad(0, 7)
        case.good(1)
        case.good(2)
    assert not case.reported


@pytest.mark.parametrize("origins", [1, 2, 100])
@pytest.mark.parametrize("drawn", [False, True])
def test_failures_that_go_with_the_replica_eject(build, origins, drawn):
    """However many callers there are: chance sends some of their requests elsewhere."""
    case, failed, turn = Callers(build), 0, 0
    while not case.reported:
        turn += 1
        failed += case.ask(turn % 4, 7 + turn % origins, sick=0, drawn=drawn) == 0
        assert failed <= 12
    assert case.reported == [(key(0), Cause.DEAD_BACKEND)]
    assert failed >= RULES.consecutive_failures


def test_failures_of_several_origins_are_no_evidence_by_themselves(build):
    """A client has as many as it likes, and may know how to send them to one replica."""
    case = Callers(build)
    for origin in range(7, 107):
        case.bad(0, origin)
        case.good(1)
    assert not case.reported


def test_a_replica_that_fails_a_part_is_ejected_by_its_share(build):
    """Two of three of its requests, so that rows are short; whether drawn or not."""
    for drawn in (False, True):
        case = Callers(build, rules=Outlier(consecutive_failures=99))
        for turn in range(2000):
            case.now -= 0.08
            case.ask(turn % 4, 7 + turn, sick=None if turn % 12 < 4 else 0, drawn=drawn)
        assert (key(0), Cause.RATIO) in case.reported
        assert {one for one, _ in case.reported} == {key(0)}


def test_without_results_of_peers_no_replica_is_ejected(build):
    """All callers may ask for what no replica can do."""
    case = Callers(build)
    for origin in range(7, 100):
        case.bad(0, origin)
    assert not case.reported


def test_one_batch_of_failures_ejects_no_replica(build):
    """After a pause, one worker of the proxy may write failures before another writes answers."""
    case = Callers(build)
    for turn in range(20):
        case.now += 3.0
        for origin in range(5 if turn else 12):
            case.ejection.good(key(1), 0.1, case.now)
            case.ejection.bad(key(0), case.now, answered=True, origin=10 + 20 * turn + origin)
        for _ in range(40):
            case.ejection.good(key(0), 0.1, case.now + 0.2)
    assert not case.reported


def test_an_origin_that_fails_on_one_replica_is_sent_elsewhere(build):
    """If that answers others; else chance decides, because the answers are evidence."""
    case = Callers(build)
    for _ in range(3):
        case.bad(0, 7)
    assert case.ejection.avoided(7, case.now) is None
    assert case.ejection.assign(key(0), case.now, case.rng, drawn=True) is not None
    case.good(0)
    assert case.ejection.avoided(7, case.now) == key(0)


def test_an_origin_that_is_answered_well_elsewhere_is_no_evidence_by_itself(build):
    """A client could send three bad ones, foresee where the fourth goes, and make it a good one."""
    case = Callers(build)
    for _ in range(3):
        case.bad(0, 7)
    for _ in range(20):
        case.good(1, origin=7)
    assert not case.reported


def test_one_origin_does_not_keep_a_replica_out(build):
    """In the half-open phase others decide as well."""
    case = Callers(build)
    case.fail(0)
    assert case.ejection.barred(10.0) == set()
    case.ejection.picked(key(0), 10.0)
    for turn in range(5):
        case.ejection.bad(key(0), 10.0 + turn, answered=True, origin=7)
        assert case.ejection.barred(10.0 + turn) == set(), "the next request is let through"
    for _ in range(2):
        case.ejection.good(key(0), 0.1, 15.0)
    assert case.phase(0) is Phase.CLOSED


def test_two_origins_send_a_half_open_replica_back(build):
    """A broken backend fails for every caller."""
    case = Callers(build)
    case.fail(0)
    case.ejection.barred(10.0)
    case.ejection.bad(key(0), 10.0, answered=True, origin=7)
    assert case.phase(0) is Phase.HALF_OPEN
    case.ejection.bad(key(0), 10.1, answered=True, origin=8)
    assert case.phase(0) is Phase.EJECTED
