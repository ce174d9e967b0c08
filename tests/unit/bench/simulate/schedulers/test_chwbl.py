"""Consistent hashing with bounded loads."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.simulate.schedulers.chwbl import BoundedHash
from support.simulated import job, world


def test_depth_tells_prompts_with_one_root_apart() -> None:
    """One leading block gives one key; two give many."""
    places = {1: set(), 2: set()}
    for depth, seen in places.items():
        for number in range(40):
            rule = BoundedHash(world(8), depth)
            seen.add(rule.choose(job(number, 0, number + 1), 0.0).replicas[0])
    assert len(places[1]) == 1
    assert len(places[2]) > 4


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_the_bound_holds(keys: list[int]) -> None:
    """No endpoint above 1.25 of the mean, including the new request, gets a request."""
    rule = BoundedHash(world(4))
    for number, key in enumerate(keys):
        before = list(rule.own.requests)
        pick = rule.choose(job(number, key), 0.0).replicas[0]
        assert before[pick] <= 1.25 * (sum(before) + 1) / 4


def test_where_all_are_above_the_bound_the_first_met_is_taken() -> None:
    """If all endpoints exceed the bound, the first one on the ring is chosen."""
    rule = BoundedHash(world(1))
    home = rule.choose(job(0, 42), 0.0).replicas[0]
    rule.own.requests[home] = 9
    assert rule.choose(job(1, 42), 0.0).replicas == [home]


def test_a_leaver_moves_only_its_own_keys() -> None:
    """If an endpoint goes silent, only its own keys move."""
    rule = BoundedHash(world(5))

    def places() -> dict[int, int]:
        found = {}
        for key in range(100):
            found[key] = rule.choose(job(key, key), 0.0).replicas[0]
            rule.settled(job(key), 0.0)
        return found

    before = places()
    rule.membership(2, "silent", 0.0)
    after = places()
    assert all(after[key] == place for key, place in before.items() if place != 2)
    for index in range(5):
        rule.membership(index, "silent", 0.0)
    assert rule.choose(job(1), 0.0) is None
