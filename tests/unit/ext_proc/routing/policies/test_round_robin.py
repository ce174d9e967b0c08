"""round-robin takes each candidate in turn."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.policies.round_robin import RoundRobin

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext


def walk(policy: RoundRobin, made: SchedulingContext, steps: int) -> list[int]:
    order = []
    for _ in range(steps):
        prices = list(policy.prices(made))
        index = prices.index(min(prices))
        assert policy.picked(made, index) == "round-robin"
        order.append(made.candidates[index].position)
    return order


def test_it_takes_turns(context: Callable[..., SchedulingContext]) -> None:
    """Each candidate comes once per round, in the pool's order."""
    order = walk(RoundRobin(random.Random(3)), context(3), 6)
    assert sorted(order[:3]) == [0, 1, 2]
    assert order[3:] == order[:3]


def test_the_start_is_random(context: Callable[..., SchedulingContext]) -> None:
    """Several pickers start at different replicas."""
    starts = {walk(RoundRobin(random.Random(seed)), context(4), 1)[0] for seed in range(30)}
    assert starts == {0, 1, 2, 3}


def test_variants_have_their_own_cursor(context: Callable[..., SchedulingContext]) -> None:
    """Requests of one variant do not move the other's cursor."""
    policy, made = RoundRobin(random.Random(0)), context(3)
    first = walk(policy, made, 1)[0]
    walk(policy, made.changed(variant="canary"), 2)
    assert walk(policy, made, 1) == [(first + 1) % 3]


@given(count=st.integers(1, 9), rounds=st.integers(1, 5), seed=st.integers(0, 99))
def test_each_round_has_each_replica_once(
    context: Callable[..., SchedulingContext], count: int, rounds: int, seed: int
) -> None:
    """From any start, each round picks each replica exactly once."""
    order = walk(RoundRobin(random.Random(seed)), context(count), count * rounds)
    for start in range(0, len(order), count):
        assert sorted(order[start : start + count]) == list(range(count))
