"""llm-d's affinity filter and weighted scorers."""

from __future__ import annotations

from bench.simulate.schedulers.base import SimulatedSample
from bench.simulate.schedulers.llm_d import NO_HIT, AffinityFilter, Saturation, WeightedScorers
from support.simulated import job, sample, world


def test_four_fifths_of_the_prompt_make_sticky() -> None:
    """A match of 0.80 or more wins against an idle endpoint; below it, the load decides."""
    rule = AffinityFilter(world(2))
    holder = rule.choose(job(1, *range(8)), 0.0).replicas[0]
    assert rule.choose(job(2, *range(8), 90, 91), 0.0).replicas == [holder]
    assert rule.choose(job(3, *range(8), 92, 93, 94), 0.0).replicas[0] == 1 - holder


def test_a_penalty_above_18_s_breaks_it() -> None:
    """144,000 more tokens in flight at 8,000 tokens/s disable the filter."""
    for tokens, sticks in ((143_000, True), (150_000, False)):
        rule = AffinityFilter(world(2))
        holder = rule.choose(job(1, *range(8), tokens=tokens), 0.0).replicas[0]
        assert (rule.choose(job(2, *range(8)), 0.0).replicas == [holder]) is sticks


def test_tokens_leave_at_the_first_token_and_move_with_a_retry() -> None:
    """The load is the uncached tokens in flight; they move with a retry."""
    rule = AffinityFilter(world(2))
    pick = rule.choose(job(1, tokens=4000), 0.0).replicas[0]
    rule.moved(job(1), 1 - pick, 0.0)
    assert rule.choose(job(2, tokens=2000), 0.0).replicas[0] == pick
    rule.answering(job(1), 1.0)
    assert rule.choose(job(3, tokens=100), 1.0).replicas[0] == 1 - pick
    for number in (1, 2, 3):
        rule.settled(job(number), 2.0)
    assert rule.own.requests == [0, 0]


def test_the_restarted_hold_nothing() -> None:
    """A restart empties the index; an empty fleet sheds."""
    rule = AffinityFilter(world(1))
    rule.choose(job(1, 1, 2), 0.0)
    rule.membership(0, "restarted", 0.0)
    assert rule.choose(job(2, 1, 2), 0.0).matched == 0
    rule.membership(0, "silent", 0.0)
    assert rule.choose(job(3), 0.0) is None


def test_scorers_weigh_prefix_queue_and_cache() -> None:
    """A whole match (3) outweighs a queue (2), but not a queue and a full cache (4)."""
    rule = WeightedScorers(world(2))
    holder = rule.choose(job(1, *range(8)), 0.0).replicas[0]
    rule.observe(holder, SimulatedSample(1.0, 5, 5, 0.0, 0), 1.0)
    assert rule.choose(job(2, *range(8)), 1.0).replicas[0] == holder
    rule.observe(holder, SimulatedSample(2.0, 5, 5, 1.0, 0), 2.0)
    assert rule.choose(job(3, *range(8)), 2.0).replicas[0] == 1 - holder


def test_prompts_that_none_holds_go_round() -> None:
    """With ``no-hit-lru``, new prompts go to the replica whose last new prompt is oldest."""
    rule = WeightedScorers(world(3), no_hit=NO_HIT)
    picks = [rule.choose(job(number, 100 + number), 0.0).replicas[0] for number in range(6)]
    assert sorted(picks[:3]) == [0, 1, 2]
    assert picks[3:] == picks[:3]


def test_the_pool_is_saturated_by_the_mean_of_its_replicas() -> None:
    """Of each the fuller of queue and KV cache counts: 5 requests that wait, or 0.8 in use."""
    gate = Saturation(world(2))
    assert gate.opens(0.0)
    gate.observe(0, sample(kv_used=0.8)._replace(queued=1))
    assert gate.opens(0.0)
    gate.observe(1, sample()._replace(queued=5))
    assert not gate.opens(0.0)
    gate.observe(1, sample(kv_used=0.79))
    assert gate.opens(0.0)
