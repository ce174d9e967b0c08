"""Dynamo's cost: blocks to compute plus blocks to keep."""

from __future__ import annotations

from bench.simulate.schedulers.dynamo import Dynamo
from support.simulated import job, world


def test_the_documentation_s_example() -> None:
    """A prompt of 10 blocks; 2, 5 and 8 are held and 10, 5 and 9 active: costs 18, 10 and 11."""
    made = world(3)
    for replica, held in zip(made.fleet, (2, 5, 8), strict=True):
        blocks = tuple(range(held))
        lease = replica.cache.lease(blocks, 0, len(blocks))
        assert lease is not None
        replica.cache.commit(lease, blocks)
    rule = Dynamo(made)
    rule.own.tokens[:] = [10.0, 5.0, 9.0]
    assert rule.choose(job(1, *range(10), tokens=5120), 0.0) == ([1, 2, 0], 5)


def test_prompt_work_is_released_at_the_first_token() -> None:
    """Prefill blocks count twice until the first token, then once until the end."""
    rule = Dynamo(world(2))
    picks = [rule.choose(job(n, tokens=5120), 0.0).replicas[0] for n in (1, 2)]
    assert sorted(picks) == [0, 1]
    rule.answering(job(1), 1.0)
    assert rule.choose(job(3, tokens=512), 1.0).replicas[0] == picks[0]
    for number in (1, 2, 3):
        rule.settled(job(number), 2.0)
    assert rule.own.tokens == [0.0, 0.0]


def test_a_retry_moves_both_charges() -> None:
    """After a retry, all charges are on the fallback; an empty fleet sheds."""
    rule = Dynamo(world(2))
    pick = rule.choose(job(1, tokens=5120), 0.0).replicas[0]
    rule.moved(job(1), 1 - pick, 0.0)
    assert rule.choose(job(2, tokens=512), 0.0).replicas[0] == pick
    rule.membership(0, "silent", 0.0)
    rule.membership(1, "silent", 0.0)
    assert rule.choose(job(3), 0.0) is None
