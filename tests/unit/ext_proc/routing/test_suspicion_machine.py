"""A killing request among innocent ones, and an operator's kills, against a real router."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ext_proc.blame.deaths import MAX_DEATHS, WINDOW_S
from ext_proc.routing.values.refusal import RefusalKind
from support.deadly import AGAIN_S, KILLER, DeadlyFleet, innocent

MOST_KILLED = 3
"""Two deaths make a member; a third, of one of these replicas, may be needed to condemn it."""
MOST_REPLICAS = 2


class KillerMachine(RuleBasedStateMachine):
    """Clients send innocent bodies and, one copy at a time, a killing one."""

    @initialize(
        replicas=st.integers(2, 6),
        seed=st.integers(0, 2**16),
        killer_read=st.booleans(),
        retry_read=st.integers(0, 1),
    )
    def start(self, replicas, seed, killer_read, retry_read):
        self.fleet = DeadlyFleet(replicas, seed, killer_read=killer_read, retry_read=retry_read)
        self.bounded = killer_read
        self.sent = 0

    @rule(count=st.integers(1, 8))
    def send_innocent_ones(self, count):
        for _ in range(count):
            self.sent += 1
            self.fleet.send(innocent(self.sent))

    @rule()
    def send_failed_ones_again(self):
        due = [body for body, at in self.fleet.failed.items() if self.fleet.now - at >= AGAIN_S]
        for body in due:
            if body != KILLER:
                self.fleet.send(body)

    @rule()
    def send_the_killer(self):
        fleet = self.fleet
        running = any(each.body == KILLER for each in fleet.running)
        if not running and fleet.now - fleet.failed.get(KILLER, 0.0) >= AGAIN_S:
            fleet.send(KILLER)

    @rule(which=st.integers(0, 100))
    def leave(self, which):
        if self.fleet.running:
            attempt = self.fleet.running[which % len(self.fleet.running)]
            self.fleet.abandon(attempt)
            self.bounded = False  # an abandoned request may be the killer (rule 3)

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.5, 5.0]))
    def wait(self, seconds):
        self.fleet.pass_time(seconds)

    @invariant()
    def no_innocent_request_is_refused(self):
        for body, kind in self.fleet.refused:
            assert kind is not RefusalKind.DEADLY_REQUEST or body == KILLER

    @invariant()
    def the_killer_kills_few(self):
        if self.bounded:
            recent = [each for at, each in self.fleet.died if self.fleet.now - at < WINDOW_S]
            assert len(recent) <= MOST_KILLED
            assert len(set(recent)) <= MOST_REPLICAS

    @invariant()
    def memory_is_bounded(self):
        assert len(list(self.fleet.router.suspicion.deaths.kept())) <= MAX_DEATHS


KillerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestKiller = KillerMachine.TestCase


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [6, 100])
@pytest.mark.parametrize("apart", [0.0, 0.1, 0.3, 1.0, 4.0])
def test_an_operators_kills_refuse_no_request(seed: int, count: int, apart: float):
    """``kill -9`` of two of three replicas under load, whose clients send their requests again.

    With six requests the sets of the two deaths often have exactly one in common.
    """
    fleet = DeadlyFleet(3, seed)
    bodies = [innocent(number) for number in range(count)]
    for body in bodies:
        fleet.send(body)
    fleet.kill("r0", *([] if apart else ["r1"]))
    if apart:
        fleet.pass_time(apart)
        fleet.kill("r1")
    for _ in range(60):
        fleet.pass_time(1.0)
        for body in list(fleet.failed):
            fleet.send(body)
        if len(fleet.answered) == len(bodies):
            break
    assert not [body for body, kind in fleet.refused if kind is RefusalKind.DEADLY_REQUEST]
    assert fleet.answered == set(bodies)


@pytest.mark.parametrize("seed", range(3))
def test_one_body_that_everybody_sends_is_never_refused(seed: int):
    """A load test: the only body in flight is on every replica that an operator kills."""
    fleet = DeadlyFleet(3, seed)
    for _ in range(20):
        fleet.send(b"the same")
        fleet.pass_time(0.2)
    fleet.kill("r0", "r1")
    for _ in range(30):
        fleet.pass_time(0.1)
        fleet.send(b"the same")
    assert not fleet.refused


@pytest.mark.parametrize(("retry_read", "killed"), [(0, 1), (1, 2)])
def test_one_copy_of_a_killing_request_kills_what_may_read_it(retry_read: int, killed: int):
    """Its second copy kills none more with the proxy's retry, and one more without; no third."""
    fleet = DeadlyFleet(4, 1, retry_read=retry_read)
    fleet.send(KILLER)
    fleet.pass_time(3.0)
    assert len(fleet.deaths) == killed
    for _ in range(3):
        fleet.send(KILLER)
        fleet.pass_time(3.0)
        assert len(fleet.deaths) == 2
    assert fleet.refused[-1] == (KILLER, RefusalKind.DEADLY_REQUEST)
    assert [len(each.replicas) for each in fleet.condemned] == [2]
