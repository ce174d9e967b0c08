"""Counting of own dispatches."""

from __future__ import annotations

import random

import pytest

from bench.simulate.schedulers.local import LocalLoad, LocalScheduler, SeenBlocks
from support.simulated import job


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
