"""cache_aware: balance first, then match, then load."""

from __future__ import annotations

from support.simulated import job, world
from tidegate.simulate.choosers.cache_aware import CacheAware


def test_a_long_match_wins_while_in_balance() -> None:
    """More than 0.3 of the prompt held decides; 0.3 or less does not."""
    rule = CacheAware(world(2))
    holder = rule.choose(job(1, 1, 2, 3, 4), 0.0).replicas[0]
    assert rule.choose(job(2, 1, 2, 3, 4, 5), 0.0) == ([holder, 1 - holder], 4)
    few = rule.choose(job(3, 1, *range(50, 60)), 0.0)
    assert few.replicas[0] == 1 - holder


def test_beyond_both_thresholds_the_least_loaded_wins() -> None:
    """65 more and more than half as many again: affinity is off."""
    rule = CacheAware(world(2))
    holder = rule.choose(job(0, 1, 2), 0.0).replicas[0]
    for number in range(1, 65):
        assert rule.choose(job(number, 1, 2), 0.0).replicas[0] == holder
    assert rule.choose(job(65, 1, 2), 0.0).replicas[0] == 1 - holder


def test_a_restarted_worker_holds_nothing() -> None:
    """Its part of the tree goes; an empty fleet sheds."""
    rule = CacheAware(world(1))
    rule.choose(job(0, 1, 2), 0.0)
    rule.membership(0, "restarted", 0.0)
    assert rule.choose(job(1, 1, 2), 0.0).matched == 0
    rule.membership(0, "silent", 0.0)
    assert rule.choose(job(2), 0.0) is None
