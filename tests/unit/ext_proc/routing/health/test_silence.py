"""Silence: when failures in a row show that a replica is sick, and when not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.health.ejection import Ejection
from ext_proc.routing.health.ejection_record import Cause
from ext_proc.routing.health.pool_results import ALARM_S, MAX_ALARMS, PoolResults, is_improbable
from ext_proc.routing.health.silence import ENOUGH, LOG_DELAY_S, MORE, Silence
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.settings import Outlier

REPLICAS = 4
STEP_S = 0.05
KEYS = [EndpointKey(f"r{number}", 1) for number in range(REPLICAS)]


class Honest:
    """An ejection whose replicas answer honest requests in turn, one each step."""

    def __init__(self, build, rules: Outlier = Outlier()) -> None:  # noqa: B008 - it is frozen
        self.reported: list[tuple[EndpointKey, Cause]] = []
        self.ejection = Ejection(lambda one, cause: self.reported.append((one, cause)))
        self.ejection.set_pool(build.pool(REPLICAS, outlier=rules))
        self.now, self.turn, self.origin = 0.0, 0, 10
        self.sick: EndpointKey | None = None
        for _ in range(200):
            self.step()

    def step(self) -> None:
        """Let the next replica answer, and decide a request."""
        self.now += STEP_S
        key = KEYS[self.turn % REPLICAS]
        self.turn += 1
        if key == self.sick:
            self.fail(key)
        else:
            self.ejection.good(key, 0.01, self.now)
        self.ejection.barred(self.now)

    def fail(self, key: EndpointKey, origin: int | None = None) -> None:
        """Let a request fail; without an origin, it has one of its own."""
        self.origin += 1
        self.ejection.bad(key, self.now, answered=True, origin=origin or self.origin)


def test_a_sick_replica_is_ejected_by_its_third_failure_or_the_one_after(build):
    """That is as soon as where each error counted at once, but for the log's delay."""
    honest = Honest(build)
    honest.sick, begun = KEYS[2], honest.now
    while not honest.reported:
        honest.step()
    assert honest.reported == [(KEYS[2], Cause.DEAD_BACKEND)]
    assert honest.now - begun <= 4 * REPLICAS * STEP_S + LOG_DELAY_S + STEP_S


@given(st.lists(st.tuples(st.integers(0, REPLICAS - 1), st.integers(1, 40)), max_size=120))
def test_no_sequence_of_bad_requests_ejects_a_replica_that_answers_others(build, attacks):
    """Whoever sends them, wherever they are steered to, while each replica answers in its turn.

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
def test_requests_that_fail_on_peers_too_eject_nobody(build, share):
    """Requests of many callers that fail everywhere are spread over the replicas."""
    honest, bad = Honest(build), 0.0
    for _ in range(400):
        honest.step()
        bad += share / (1.0 - share)
        while bad >= 1.0:
            honest.fail(KEYS[honest.origin * 7 % REPLICAS])
            bad -= 1.0
    assert not honest.reported


def test_failures_before_a_pause_of_all_callers_eject_nobody(build):
    """The silence stands still while no replica answers."""
    honest = Honest(build)
    for pause in range(10):
        for origin in range(3):
            honest.fail(KEYS[0], 1000 + 10 * pause + origin)
        honest.now += 30.0
        honest.ejection.good(KEYS[1], 0.01, honest.now)
        honest.fail(KEYS[0], 1005 + 10 * pause)
        honest.ejection.barred(honest.now)
        for _ in range(REPLICAS):
            honest.step()
    assert not honest.reported


def test_failures_that_do_not_go_on_eject_nobody(build):
    """A burst between two good answers, the second of which is late."""
    honest = Honest(build)
    for _ in range(5):
        honest.fail(KEYS[0])
    for _ in range(12):
        honest.now += STEP_S
        honest.ejection.good(KEYS[1 + honest.turn % 3], 0.01, honest.now)
        honest.turn += 1
        honest.ejection.barred(honest.now)
    assert not honest.reported


def test_replicas_that_wait_for_a_verdict_are_judged_by_decisions_for_a_while(build):
    """They are looked at no longer than results may be late, so an old row costs nothing."""
    honest = Honest(build)
    for _ in range(5):
        honest.fail(KEYS[0])
    assert honest.ejection
    honest.ejection.barred(honest.now + 60.0)
    assert not honest.ejection


def test_false_alarms_are_bounded_and_forgotten():
    """A thousand weigh as four, and nothing after a long time."""
    pool = PoolResults()
    assert pool.alarms(0.0) == 0.0
    for _ in range(1000):
        pool.alarm(1.0)
    assert pool.alarms(1.0) == MAX_ALARMS
    assert pool.alarms(1.0 + ALARM_S) == pytest.approx(MAX_ALARMS / 2.718, rel=1e-3)
    assert pool.alarms(1.0 + 20.0 * ALARM_S) < 1e-6


def _answers_needed(alarms: int) -> int:
    """Return how many answers of others show that a replica with one in four is silent."""
    pool, silence = PoolResults(), Silence(2)
    for _ in range(200):
        pool.answers += 3
        silence.answered(pool, 1)
    for _ in range(alarms):
        pool.alarm(0.0)
    silence.begin(pool, 0.0)
    for others in range(200):
        silence.failed(pool)
        if silence.shows(3, 0.0, 0.0, pool) or silence.shows(3, 0.0, LOG_DELAY_S, pool):
            return others
        pool.answers += 1
    return 200


def test_each_false_alarm_makes_more_silence_necessary():
    """By chance m answers in a row are of others once in (4/3)**m times."""
    assert [_answers_needed(alarms) for alarms in (0, 1, 2)] == [
        -int(-(ENOUGH + MORE * alarms) // 0.28768) for alarms in (0, 1, 2)
    ]


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
