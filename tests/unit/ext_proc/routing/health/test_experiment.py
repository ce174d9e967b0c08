"""Experiments: when failures show that a replica is sick, and when that requests are at fault."""

from __future__ import annotations

import random
from math import e, exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.blame.origins import number_of
from ext_proc.routing.health.ejection import WAIT_S, Ejection
from ext_proc.routing.health.ejection_record import Cause, EjectionRecord
from ext_proc.routing.health.experiment import (
    DEBT,
    DEBT_S,
    DRAWN,
    FEW,
    LEAST,
    LEAST_SHARE,
    LONE_ODDS,
    MANY,
    MAX_SUSPECTS,
    ROW_ODDS,
    Experiment,
    fair_share,
    identity,
    shown,
)
from ext_proc.routing.health.pool_results import (
    ALARM_S,
    MAX_ALARMS,
    MAX_CLIENTS,
    PoolResults,
    is_improbable,
)
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.settings import Outlier

REPLICAS = 4
STEP_S = 0.05
KEYS = [EndpointKey(f"r{number}", 1) for number in range(REPLICAS)]


class Honest:
    """An ejection whose replicas answer honest requests in turn, one each step."""

    def __init__(self, build, rules: Outlier = Outlier(), seed: int = 1) -> None:  # noqa: B008 - it is frozen
        self.reported: list[tuple[EndpointKey, Cause]] = []
        self.ejection = Ejection(lambda one, cause: self.reported.append((one, cause)))
        self.ejection.set_pool(build.pool(REPLICAS, outlier=rules))
        self.rng = random.Random(seed)
        self.now, self.turn, self.origin = 0.0, 0, 10
        self.sick: EndpointKey | None = None
        for _ in range(200):
            self.step()

    def step(self, *, drawn: bool = False) -> EndpointKey:
        """Let the next replica answer, or the one that an experiment chooses; return which did."""
        self.now += STEP_S
        key, origin = self.place(KEYS[self.turn % REPLICAS], drawn=drawn)
        self.turn += 1
        if key == self.sick:
            self.ejection.bad(key, self.now, answered=True, origin=origin)
        else:
            self.ejection.good(key, 0.01, self.now)
            self.ejection.well(key, origin, self.now)
        self.ejection.barred(self.now)
        return key

    def place(self, key: EndpointKey, *, drawn: bool) -> tuple[EndpointKey, int]:
        """Place a request of an origin of its own; return its replica, and what it counts for."""
        self.origin += 1
        found = self.ejection.assign(key, self.now, self.rng, drawn=drawn)
        if found is None:
            return key, self.origin
        subject, gets_it = found
        if gets_it or key == subject:
            key = subject if gets_it else KEYS[(KEYS.index(subject) + 1) % REPLICAS]
        return key, number_of(identity(subject, drawn=drawn, gets_it=gets_it))

    def fail(self, key: EndpointKey, *, drawn: bool = True) -> EndpointKey:
        """Send a request that fails wherever it is sent; return where it did."""
        key, origin = self.place(key, drawn=drawn)
        self.ejection.bad(key, self.now, answered=True, origin=origin)
        return key


@pytest.mark.parametrize("drawn", [False, True])
def test_a_sick_replica_is_ejected_after_a_few_failures(build, drawn):
    """As many as where each error counted at once, and one or two more; the median of 99 runs."""
    failed = []
    for seed in range(99):
        honest = Honest(build, seed=seed)
        honest.sick, failures = KEYS[2], 0
        while not honest.reported:
            failures += honest.step(drawn=drawn) == honest.sick
        assert honest.reported == [(KEYS[2], Cause.DEAD_BACKEND)]
        failed.append(failures)
    assert sorted(failed)[49] <= 4
    assert max(failed) <= 20


@given(st.lists(st.tuples(st.integers(0, REPLICAS - 1), st.integers(1, 40)), max_size=120))
def test_no_sequence_of_bad_requests_ejects_a_replica_that_answers_others(build, attacks):
    """This holds for every sender and every placement, while each replica answers in its turn.

    Without the failure share: one that most requests of a replica exceed does eject.
    """
    honest = Honest(build, Outlier(failure_percent=0.0))
    for replica, times in attacks:
        for _ in range(times):
            honest.fail(KEYS[replica])
        honest.step()
    assert not honest.reported


@given(
    st.lists(st.integers(1, 40), max_size=80),
    st.integers(0, REPLICAS - 1),
)
def test_after_any_attack_a_sick_replica_is_ejected_within_a_bound(build, attacks, sick):
    """False alarms make it slower, and there is a most of them."""
    honest = Honest(build, Outlier(failure_percent=0.0))
    for times in attacks:
        for _ in range(times):
            honest.fail(KEYS[sick])
        honest.step()
    honest.sick, begun = KEYS[sick], honest.now
    while not honest.reported:
        honest.step()
        assert honest.now - begun <= 2.0 * (1.0 + MAX_ALARMS) + 1.0
    assert honest.reported[0][0] == KEYS[sick]


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_requests_that_fail_on_peers_too_eject_seldom(build, share):
    """Requests of many callers that fail everywhere, wherever chance sends them."""
    ejected = 0
    for seed in range(30):
        honest, bad = Honest(build, seed=seed), 0.0
        for _ in range(200):
            honest.step()
            bad += share / (1.0 - share)
            while bad >= 1.0:
                honest.fail(KEYS[honest.origin * 7 % REPLICAS], drawn=False)
                bad -= 1.0
        ejected += bool(honest.reported)
    assert ejected <= 8


def test_failures_before_a_pause_of_all_callers_are_no_more_than_others(build):
    """No experiment goes on while no replica answers."""
    ejected = 0
    for seed in range(30):
        honest = Honest(build, seed=seed)
        for _ in range(3):
            honest.fail(KEYS[0])
        honest.now += 30.0
        honest.ejection.good(KEYS[1], 0.01, honest.now)
        honest.fail(KEYS[0])
        for _ in range(REPLICAS):
            honest.step()
        ejected += bool(honest.reported)
    assert ejected <= 3


def test_an_experiment_ends_with_a_good_answer_and_after_a_while(build):
    """Requests are placed by chance no longer than results may be late."""
    for ended in (True, False):
        honest = Honest(build)
        for number in (1000, 1001):
            assert honest.ejection.assign(KEYS[0], honest.now, honest.rng, drawn=True) is None
            honest.ejection.bad(KEYS[0], honest.now, answered=True, origin=number)
        assert honest.ejection.assign(KEYS[0], honest.now + WAIT_S, honest.rng, drawn=True)
        assert honest.ejection.assign(KEYS[1], honest.now + WAIT_S, honest.rng, drawn=True) is None
        if ended:
            honest.ejection.good(KEYS[0], 0.01, honest.now)
        late = honest.now + (0.0 if ended else WAIT_S + 0.1)
        assert honest.ejection.assign(KEYS[0], late, honest.rng, drawn=True) is None


def test_chance_sends_a_suspect_its_share(build):
    """Half of what is drawn to it, and one in n of what nothing draws, picked there or not."""
    honest = Honest(build)
    for number in (1000, 1001):
        honest.ejection.bad(KEYS[0], honest.now, answered=True, origin=number)
    for picked, drawn, share in ((0, True, 0.5), (0, False, 0.25), (3, False, 0.25)):
        parts = [
            honest.ejection.assign(KEYS[picked], honest.now, honest.rng, drawn=drawn)
            for _ in range(4000)
        ]
        assert {part[0] for part in parts} == {KEYS[0]}
        assert sum(part[1] for part in parts) == pytest.approx(4000 * share, rel=0.1)


def test_requests_drawn_to_one_replica_eject_it_seldom(build):
    """Many callers' failing requests between good answers at random; the odds are a bet.

    With the rule that counted origins and missing good answers, 82 of 100 such runs ejected.
    """
    ejected = 0
    for seed in range(60):
        honest = Honest(build, seed=seed)
        for _ in range(150):
            honest.turn = honest.rng.randrange(REPLICAS)
            honest.step(drawn=True)
            if honest.rng.random() < 0.2:
                honest.fail(KEYS[0])
        ejected += bool(honest.reported)
    assert ejected <= 12


@given(st.floats(0.01, 0.99))
def test_the_odds_stay_what_they_are_on_average_if_requests_are_at_fault(share):
    """So no client can steer them."""
    change = {}
    for here in (True, False):
        odds = Experiment()
        odds.failed(share, here=here)
        change[here] = exp(odds.row)
        assert odds.failures == max(odds.row, 0.0)
    assert share * change[True] + (1.0 - share) * change[False] == pytest.approx(1.0)


def test_failures_elsewhere_in_any_number_weigh_as_one():
    """Else a client could hide for long that the subject becomes sick."""
    odds = Experiment()
    for _ in range(1000):
        odds.failed(DRAWN, here=False)
    assert odds.row == LEAST
    assert odds.failures == 0.0


def test_what_a_client_among_others_fails_elsewhere_stays_against_it_for_a_while():
    """A new row ends what speaks against the replica, and all that is known of a client alone."""
    odds = Experiment()
    for _ in range(1000):
        odds.failed(DRAWN, here=False, alone=False)
    assert odds.row == DEBT
    odds.begin(DEBT_S, alone=False)
    assert odds.row == pytest.approx(DEBT / e)
    odds.begin(0.0, alone=True)
    assert odds.row == 0.0
    odds.failed(DRAWN, here=True)
    odds.begin(0.0, alone=False)
    assert odds.row == 0.0


def test_odds_of_a_row_that_a_good_answer_ended_count_no_more():
    """Else two failures before each good answer would eject."""
    record, pool = EjectionRecord("stable"), PoolResults()
    for now in (0.0, 1.0):
        record.fail(now, 5.0, 10, 7, pool)
        assert record.experiments[7].row == 0.0
        record.experiment_of(7).failed(DRAWN, here=True)
        record.end_row()
    assert record.experiments[7].failures > record.experiments[7].row > 0.0


def test_a_small_replica_gets_no_more_than_it_is_used_to():
    """One in n, unless its share of the answers is less than half of that."""
    assert fair_share(10.0, 40.0, 4) == 0.25
    assert fair_share(20.0, 40.0, 4) == 0.25
    assert fair_share(5.0, 40.0, 4) == 0.25
    assert fair_share(2.0, 40.0, 4) == 0.05
    assert fair_share(0.0, 40.0, 4) == LEAST_SHARE / 4.0
    assert fair_share(0.0, 39.0, 4) == 0.25
    assert fair_share(0.0, 0.0, 4) == 0.25
    assert fair_share(1.0, 1.0, MANY + 1) == 1.0 / FEW


def test_a_few_replicas_are_subjects_at_a_time(build):
    """In an outage each decision would otherwise look at all."""
    ejection = Ejection(lambda *_: None)
    ejection.set_pool(build.pool(3 * MAX_SUSPECTS))
    rng, keys = random.Random(1), [EndpointKey(f"r{n}", 1) for n in range(3 * MAX_SUSPECTS)]
    for origin, key in enumerate(keys, 7):
        ejection.bad(key, 0.0, answered=True, origin=origin)
    found = {ejection.assign(keys[0], 0.0, rng, drawn=False)[0] for _ in range(500)}
    assert len(found) == MAX_SUSPECTS


def test_a_good_answer_elsewhere_is_worth_what_it_would_cost_at_the_subject():
    """There it ends the row, so elsewhere it multiplies the odds by 1 / (1 - share)."""
    odds = Experiment()
    odds.answered_elsewhere(0.25)
    assert odds.row == pytest.approx(log(4.0 / 3.0))
    assert odds.failures == 0.0


def test_false_alarms_are_bounded_and_forgotten():
    """A thousand weigh as four, and nothing after a long time; they are their clients' alone."""
    pool = PoolResults()
    assert pool.alarms(7, 0.0) == 0.0
    for _ in range(1000):
        pool.alarm((7, 8), 1.0)
    assert pool.alarms(7, 1.0) == pool.alarms(8, 1.0) == MAX_ALARMS
    assert pool.alarms(9, 1.0) == 0.0
    assert pool.alarms(7, 1.0 + ALARM_S) == pytest.approx(MAX_ALARMS / 2.718, rel=1e-3)
    assert pool.alarms(7, 1.0 + 20.0 * ALARM_S) < 1e-6
    for client in range(2 * MAX_CLIENTS):
        pool.alarm((client,), 2.0)
    assert pool.alarms(MAX_CLIENTS - 1, 2.0) == 0.0
    assert pool.alarms(MAX_CLIENTS, 2.0) == 1.0


def test_a_client_is_alone_until_another_one_is_answered_well():
    """And again once that was a window ago."""
    pool = PoolResults()
    assert pool.alone(7, 0.0, 5.0)
    for second in range(10):
        pool.answered(7, float(second))
    assert pool.alone(7, 9.0, 5.0)
    assert not pool.alone(8, 9.0, 5.0)
    pool.answered(8, 10.0)
    assert not pool.alone(7, 11.0, 5.0)
    assert not pool.alone(8, 11.0, 5.0)
    pool.answered(7, 14.9)
    assert not pool.alone(7, 14.9, 5.0)
    assert pool.alone(7, 15.1, 5.0)


def test_failures_of_a_client_among_others_count_once_a_window():
    """Those of one that is alone count each, as nothing else shows how often requests fail."""
    pool = PoolResults()
    assert [pool.counts(7, now, 5.0) for now in (0.0, 1.0)] == [True, True]
    pool.answered(8, 2.0)
    assert [pool.counts(7, now, 5.0) for now in (2.0, 3.0, 6.9)] == [True, False, False]
    assert pool.counts(9, 3.0, 5.0)
    assert pool.failures == 4


@pytest.mark.parametrize(
    ("odds", "alone", "found"),
    [
        ((), True, False),
        ((ROW_ODDS,), True, True),
        ((ROW_ODDS,), False, False),
        ((ROW_ODDS + LONE_ODDS - 0.01,), False, False),
        ((ROW_ODDS + LONE_ODDS,), False, True),
        ((ROW_ODDS - 0.01, -1.0), True, False),
        ((ROW_ODDS, 0.2), False, False),
        ((ROW_ODDS, -9.0, 0.7), False, True),
        ((1.0, 1.0, 1.0), False, True),
    ],
)
def test_no_client_alone_shows_enough_beside_others(odds, alone, found):
    """What one gives is bounded, and what others fail everywhere takes nothing away."""
    assert shown(odds, ROW_ODDS, alone=alone) is found


def test_failures_are_improbable_only_where_others_are_rare():
    """Three where one in ten fails, ten where each second one does, never where all do."""
    assert not is_improbable(2, 0, 0.0)
    assert is_improbable(3, 0, 0.0)
    assert is_improbable(3, 0, 0.1)
    assert not is_improbable(9, 0, 0.5)
    assert is_improbable(10, 0, 0.5)
    assert not is_improbable(10_000, 0, 1.0)
    assert not is_improbable(5, 5, 0.1)
    assert is_improbable(7, 7, 0.1)
    assert not is_improbable(1, 99, 0.0)
