"""token-bucket: an allowance of work per replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.policies.token_bucket import BURST_S, MOST_RATE, TokenBucket
from ext_proc.routing.values.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext


def pick(policy: TokenBucket, made: SchedulingContext) -> tuple[int, str]:
    prices = list(policy.prices(made))
    index = prices.index(min(prices))
    return index, policy.picked(made, index)


def test_a_pick_takes_the_request_s_seconds(context: Callable[..., SchedulingContext]) -> None:
    """The level falls by the uncached prefill, or by the service time, and refills with time."""
    policy, made = TokenBucket(), context(1, tokens=800.0, matched=[5], blocks=12)
    assert pick(policy, made) == (0, "least")
    assert policy.level(made.candidates[0], 0.0) == pytest.approx(BURST_S - 480 / 8000)
    pick(policy, made.changed(tokens=None))
    assert policy.level(made.candidates[0], 0.0) == pytest.approx(BURST_S - 0.06 - 0.02)
    assert policy.level(made.candidates[0], 0.05) == pytest.approx(BURST_S - 0.03)
    assert policy.level(made.candidates[0], 9.0) == BURST_S


@given(steps=st.lists(st.tuples(st.floats(0, 0.5), st.floats(1, 9000)), min_size=1, max_size=60))
def test_the_burst_is_bounded(
    context: Callable[..., SchedulingContext], steps: list[tuple[float, float]]
) -> None:
    """Picks with allowance left take at most the burst, the refill and one overdraft."""
    policy, made, now, taken, largest = TokenBucket(), context(2), 0.0, [0.0, 0.0], 0.0
    for gap, tokens in steps:
        now += gap
        index, label = pick(policy, made.changed(now=now, tokens=tokens))
        largest = max(largest, tokens / 8000)
        if label == "spill":
            return
        taken[index] += tokens / 8000
        assert taken[index] <= BURST_S + MOST_RATE * now + largest + 1e-9


@pytest.mark.parametrize(
    ("queued", "tokens", "rate"), [(9.0, 8.0, 0.7), (0.0, 40_000.0, 1.05), (None, 8.0, 1.0)]
)
def test_the_queue_moves_the_rate(
    context: Callable[..., SchedulingContext], queued: float | None, tokens: float, rate: float
) -> None:
    """A long queue cuts it, an empty one with no allowance raises it, an unknown one keeps it."""
    policy, made = TokenBucket(), context(1, tokens=tokens)
    pick(policy, made)
    if queued is not None:
        made.candidates[0].replica.observe([Reading(at=1.0, queued=queued)])
    pick(policy, made.changed(now=1.5))
    bucket = policy._buckets[made.candidates[0].key]
    assert bucket.rate == pytest.approx(rate)


def test_replicas_that_left_are_forgotten(context: Callable[..., SchedulingContext]) -> None:
    """There are at most twice as many buckets as endpoints in the pool."""
    policy = TokenBucket()
    for number in range(30):
        made = context(2)
        for candidate in made.candidates:
            candidate.key = candidate.key._replace(id=f"{candidate.key.id}-{number}")
        pick(policy, made)
    assert len(policy._buckets) <= 6
