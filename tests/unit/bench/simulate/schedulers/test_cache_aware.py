"""The rule ``cache_aware``: balance, then match, then load."""

from __future__ import annotations

import pytest

from bench.simulate.schedulers.cache_aware import CacheAware
from support.simulated import job, world


def test_beyond_both_thresholds_the_least_loaded_wins() -> None:
    """Above both thresholds, the least loaded is chosen without affinity."""
    rule = CacheAware(world(2))
    holder = rule.choose(job(0, 1, 2), 0.0).replicas[0]
    for number in range(1, 65):
        assert rule.choose(job(number, 1, 2), 0.0).replicas[0] == holder
    assert rule.choose(job(65, 1, 2), 0.0).replicas[0] == 1 - holder


@pytest.mark.parametrize(
    ("holder", "other", "affine"),
    [
        (200, 136, True),  # 64 more are not more than 64
        (200, 134, True),  # 66 more, but 200 is no more than 1.5 * 134 = 201
        (200, 130, False),  # 70 more, and 200 is more than 195
    ],
)
def test_balance_needs_both_thresholds(holder: int, other: int, affine: bool) -> None:
    """Affinity is off only if the difference exceeds 64 and the ratio exceeds 1.5."""
    rule = CacheAware(world(2))
    rule._tree.insert(0, (1, 2, 3))
    rule.own.requests[:] = [holder, other]
    assert (rule.choose(job(9, 1, 2, 3), 0.0).replicas[0] == 0) is affine


@pytest.mark.parametrize(("tokens", "affine"), [(5120, False), (5119, True)])
def test_the_match_must_be_above_its_share(tokens: int, affine: bool) -> None:
    """1,536 of 5,120 tokens (0.3) are not enough; of 5,119 they are."""
    rule = CacheAware(world(2))
    rule._tree.insert(0, (1, 2, 3))
    rule.own.requests[0] = 1
    picked = rule.choose(job(9, 1, 2, 3, *range(50, 56), tokens=tokens), 0.0)
    assert (picked.replicas[0] == 0) is affine


def test_a_restarted_worker_holds_nothing() -> None:
    """A restart removes the worker from the tree; an empty fleet sheds."""
    rule = CacheAware(world(1))
    rule.choose(job(0, 1, 2), 0.0)
    rule.membership(0, "restarted", 0.0)
    assert rule.choose(job(1, 1, 2), 0.0).matched == 0
    rule.membership(0, "silent", 0.0)
    assert rule.choose(job(2), 0.0) is None
