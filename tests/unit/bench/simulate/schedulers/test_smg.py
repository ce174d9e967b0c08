"""least_load: polled token work, own dispatches since, and the memory barrier."""

from __future__ import annotations

from bench.simulate.schedulers.smg import LeastLoad, TokenBucket
from support.simulated import job, sample, world


def polled(tokens: tuple[int, ...], kv_used: tuple[float, ...]) -> LeastLoad:
    """Return the rule after one poll."""
    rule = LeastLoad(world(len(tokens)))
    for index, (count, used) in enumerate(zip(tokens, kv_used, strict=True)):
        rule.observe(index, sample(tokens=count, kv_used=used), 0.0)
    return rule


def test_the_shortest_drain_wins_and_is_credited() -> None:
    """Own tokens since the poll count immediately, so dispatches level the queues."""
    rule = polled((3000, 0), (0.0, 0.0))
    picks = [rule.choose(job(number, tokens=1000), 0.0).replicas[0] for number in range(5)]
    assert picks == [1, 1, 1, 0, 1]


def test_the_score_by_hand() -> None:
    """(3,000 + 500) / 2,000 + 0.15 * 0.5 / 0.5 = 1.90 s against 3,790 or 3,810 / 2,000 s."""
    for rival, picked in ((3790, 1), (3810, 0)):
        rule = polled((3000, rival), (0.5, 0.0))
        rule._since[0] = 500.0
        assert rule.choose(job(1), 0.0).replicas[0] == picked


def test_readings_between_polls_are_not_seen() -> None:
    """Samples between polls (every 10 s) are ignored; a poll resets own tokens."""
    rule = polled((0, 500), (0.0, 0.0))
    rule.observe(0, sample(5.0, tokens=9000), 5.0)
    assert rule.choose(job(1, tokens=100), 5.0).replicas[0] == 0
    rule.observe(0, sample(10.0, tokens=9000), 10.0)
    assert rule.choose(job(2, tokens=100), 10.0).replicas[0] == 1


def test_before_the_first_poll_requests_count() -> None:
    """Before the first poll own requests decide; an empty fleet sheds."""
    rule = LeastLoad(world(2))
    assert [rule.choose(job(n), 0.0).replicas[0] for n in range(4)] == [0, 1, 0, 1]
    rule.membership(0, "restarted", 0.0)
    rule.membership(0, "silent", 0.0)
    rule.membership(1, "silent", 0.0)
    assert rule.choose(job(9), 0.0) is None


def test_a_bucket_is_filled_by_time_and_by_ends() -> None:
    """So with its default rate it holds nothing back that comes slower than that."""
    bucket = TokenBucket(2, 1.0)
    assert [bucket.opens(0.0) for _ in range(3)] == [True, True, False]
    bucket.ended(0.0)
    assert [bucket.opens(0.0) for _ in range(2)] == [True, False]
    assert [bucket.opens(1.0) for _ in range(2)] == [True, False]
    assert [bucket.opens(9.0) for _ in range(3)] == [True, True, False]
