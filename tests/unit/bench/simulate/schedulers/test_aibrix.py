"""AIBrix's rule: the longest match among pods that are not overloaded."""

from __future__ import annotations

import pytest

from bench.simulate.schedulers.aibrix import PrefixCache
from support.simulated import job, world


@pytest.mark.parametrize(
    ("loads", "picked"),
    [
        # mean 2.25, deviation sqrt((0.56 + 1.56 + 0.06 + 0.56) / 3) = 0.96: 3 is below 3.21.
        ([3, 1, 2, 3], 0),
        # mean 2.25, deviation sqrt((3.06 + 1.56 + 0.06 + 0.06) / 3) = 1.26: 4 is above 3.51.
        ([4, 1, 2, 2], 1),
        # 9 more than the fewest: the balance decides, whatever each holds.
        ([9, 0, 9, 9], 1),
        # 8 more than the fewest, bound 6 + 4 = 10: still kept.
        ([8, 0, 8, 8], 0),
    ],
)
def test_the_bound_is_one_deviation_above_the_mean(loads: list[int], picked: int) -> None:
    """The replica with the prompt is chosen only if its load is within the bound."""
    rule = PrefixCache(world(4))
    rule._index.insert(0, (1, 2, 3))
    rule.own.requests[:] = loads
    assert rule.choose(job(9, 1, 2, 3), 0.0).replicas[0] == picked


def test_the_longest_match_wins_then_the_fewest_requests() -> None:
    """The longer match wins; of equal matches, the lower load."""
    rule = PrefixCache(world(3))
    rule._index.insert(0, (1,))
    rule._index.insert(1, (1, 2))
    rule._index.insert(2, (1, 2))
    rule.own.requests[:] = [0, 1, 0]
    picked = rule.choose(job(9, 1, 2, 3), 0.0)
    assert (picked.replicas[0], picked.matched) == (2, 2)


def test_an_unknown_prompt_goes_to_the_fewest_and_is_known_then() -> None:
    """Without a match, the least loaded; a restart drops blocks; an empty fleet sheds."""
    rule = PrefixCache(world(2))
    rule.own.requests[0] = 1
    assert rule.choose(job(1, 7), 0.0).replicas[0] == 1
    assert rule.choose(job(2, 7), 0.0) == ([1, 0], 1)
    rule.membership(1, "restarted", 0.0)
    rule.membership(0, "silent", 0.0)
    assert rule.choose(job(3, 7), 0.0) == ([1], 0)
    rule.membership(1, "silent", 0.0)
    assert rule.choose(job(4, 7), 0.0) is None
