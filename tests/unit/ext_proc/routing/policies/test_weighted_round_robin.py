"""weighted-round-robin gives exact shares, smoothly."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.policies.weighted_round_robin import WeightedRoundRobin

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext


def walk(policy: WeightedRoundRobin, made: SchedulingContext, steps: int) -> list[int]:
    order = []
    for _ in range(steps):
        prices = list(policy.prices(made))
        index = prices.index(min(prices))
        assert policy.picked(made, index) == "round-robin"
        order.append(index)
    return order


def test_the_order_is_nginx_s(context: Callable[..., SchedulingContext]) -> None:
    """Strengths 5, 1, 1 give a a b a c a a, without a burst of the strong replica."""
    order = walk(WeightedRoundRobin(), context(3, strength=[5.0, 1.0, 1.0]), 7)
    assert order == [0, 0, 1, 0, 2, 0, 0]


@given(strength=st.lists(st.integers(1, 6), min_size=1, max_size=6), rounds=st.integers(1, 3))
def test_each_round_is_exact(
    context: Callable[..., SchedulingContext], strength: list[int], rounds: int
) -> None:
    """Over whole rounds each replica gets exactly its strength's share of requests."""
    made = context(len(strength), strength=[float(each) for each in strength])
    order = Counter(walk(WeightedRoundRobin(), made, rounds * sum(strength)))
    assert [order[index] for index in range(len(strength))] == [rounds * s for s in strength]


def test_replicas_that_left_are_forgotten(context: Callable[..., SchedulingContext]) -> None:
    """There are at most twice as many credits as endpoints in the pool."""
    policy = WeightedRoundRobin()
    for number in range(30):
        made = context(2)
        for candidate in made.candidates:
            candidate.key = candidate.key._replace(id=f"{candidate.key.id}-{number}")
        walk(policy, made, 1)
    assert len(policy._credits["stable"]) <= 6
