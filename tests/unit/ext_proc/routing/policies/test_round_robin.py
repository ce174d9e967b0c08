"""round-robin takes each seat in turn."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.policies.round_robin import RoundRobin

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.policies import Offer


def walk(policy: RoundRobin, made: Offer, steps: int) -> list[int]:
    order = []
    for _ in range(steps):
        prices = list(policy.prices(made))
        index = prices.index(min(prices))
        assert policy.picked(made, index) == "round-robin"
        order.append(made.seats[index].position)
    return order


def test_it_takes_turns(offer: Callable[..., Offer]) -> None:
    """Each seat comes once per round, in the pool's order."""
    order = walk(RoundRobin(random.Random(3)), offer(3), 6)
    assert sorted(order[:3]) == [0, 1, 2]
    assert order[3:] == order[:3]


def test_the_start_is_random(offer: Callable[..., Offer]) -> None:
    """Several pickers do not walk in step."""
    starts = {walk(RoundRobin(random.Random(seed)), offer(4), 1)[0] for seed in range(30)}
    assert starts == {0, 1, 2, 3}


def test_an_ineligible_seat_is_skipped(offer: Callable[..., Offer]) -> None:
    """The walk goes on behind the seat that was picked."""
    policy, made = RoundRobin(random.Random(0)), offer(4)
    walk(policy, made, 1)
    without = made.changed(seats=[made.seats[0], made.seats[1], made.seats[3]])
    order = walk(policy, without, 6)
    assert sorted(order[:3]) == [0, 1, 3]
    assert order[3:] == order[:3]


def test_variants_have_their_own_cursor(offer: Callable[..., Offer]) -> None:
    """Requests of one variant do not move the other's cursor."""
    policy, made = RoundRobin(random.Random(0)), offer(3)
    first = walk(policy, made, 1)[0]
    walk(policy, made.changed(variant="canary"), 2)
    assert walk(policy, made, 1) == [(first + 1) % 3]


def test_asking_changes_nothing(offer: Callable[..., Offer]) -> None:
    """Prices may be asked as often as one likes."""
    policy, made = RoundRobin(random.Random(0)), offer(3)
    assert policy.prices(made) == policy.prices(made)


@given(count=st.integers(1, 9), rounds=st.integers(1, 5), seed=st.integers(0, 99))
def test_each_round_has_everybody_once(
    offer: Callable[..., Offer], count: int, rounds: int, seed: int
) -> None:
    """Exactly, from any start."""
    order = walk(RoundRobin(random.Random(seed)), offer(count), count * rounds)
    for start in range(0, len(order), count):
        assert sorted(order[start : start + count]) == list(range(count))
