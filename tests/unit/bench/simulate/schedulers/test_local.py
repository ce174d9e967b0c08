"""Counting of own dispatches."""

from __future__ import annotations

import random

import pytest

from bench.simulate.schedulers.local import (
    FewestRequests,
    GatedScheduler,
    LocalLoad,
    LocalScheduler,
    SeenBlocks,
)
from bench.simulate.schedulers.smg import TokenBucket
from support.simulated import job, world


def test_a_charge_is_given_back_where_it_moved() -> None:
    """A retry moves the charge of requests and tokens; settling releases all of it."""
    own = LocalLoad(2, None)
    own.charge(job(1), 0, 50.0)
    own.move(job(1), 1)
    assert (own.requests, own.tokens) == ([0, 1], [0.0, 50.0])
    assert own.settle(job(1)) == 50.0
    own.release(job(1))
    assert (own.requests, own.tokens) == ([0, 0], [0.0, 0.0])
    with pytest.raises(KeyError):
        own.settle(job(1))


def test_members_are_those_present() -> None:
    """Replicas that have not joined or are silent are not candidates until they return."""
    rule = LocalScheduler(3, 0, random.Random(0))
    assert rule.own.candidates() == [1, 2]
    rule.membership(0, "joined", 1.0)
    rule.membership(2, "silent", 2.0)
    assert rule.own.candidates() == [0, 1]
    rule.membership(2, "restarted", 3.0)
    assert rule.own.candidates() == [0, 1, 2]


def test_equal_costs_are_drawn() -> None:
    """Lower costs come first; ties are in random order."""
    rule = LocalScheduler(4, None, random.Random(0))
    firsts = {rule.ordered([(1.0, 0), (1.0, 1), (2.0, 2), (3.0, 3)])[0] for _ in range(50)}
    assert firsts == {0, 1}
    assert rule.ordered([(2.0, 0), (1.0, 1)]) == [1, 0]


def test_seen_blocks_are_bounded_and_leave_leaf_first() -> None:
    """At the capacity of a replica, the leaf of its oldest prompt is evicted."""
    seen = SeenBlocks(2, 5)
    seen.insert(0, (1, 2, 3))
    seen.insert(0, (4, 5, 6))
    assert (seen.held(0), seen.match(0, (1, 2, 3)), seen.match(0, (4, 5, 6))) == (5, 2, 3)
    assert seen.match(1, (1,)) == 0
    seen.forget(0)
    assert seen.held(0) == 0


def test_jobs_wait_before_a_gate_in_their_order() -> None:
    """Beyond the most that wait they are shed, and after the longest wait too."""
    rule = GatedScheduler(FewestRequests(world(2)), TokenBucket(1, 0.0), most=2, wait_s=10.0)
    told: list[tuple[int, bool, float]] = []
    for number in range(4):
        rule.submit(
            job(number),
            number,
            lambda choice, at, n=number: told.append((n, choice is not None, at)),
        )
    assert told == [(0, True, 0.0), (3, False, 3.0)]
    rule.settled(job(0), 4.0)
    rule.pump(4.0)
    assert told[2:] == [(1, True, 4.0)]
    rule.pump(12.0)
    assert told[3:] == [(2, False, 12.0)]
    assert rule.waiting == 0
