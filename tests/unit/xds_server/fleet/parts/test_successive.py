"""Functions of successive fleets: what is stepped equals what is made anew."""

from __future__ import annotations

import gc

import pytest

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.model.fleet import Fleet, PoolSpec
from xds_server.fleet.parts import successive
from xds_server.fleet.parts.successive import (
    KEPT,
    MAX_CHANGED,
    PAIRS,
    Successive,
    changed,
    each_pool,
    edited_endpoints,
    with_changed,
)


def three() -> Fleet:
    """Return a fleet of three pools."""
    return fleet(
        pool("a", default=True),
        pool("b", endpoints=[endpoint(11), endpoint(12, variant="canary")]),
        pool("c", endpoints=[endpoint(21), endpoint(22, variant="canary")]),
    )


def braked(of: Fleet, position: int, percent: float) -> Fleet:
    """Return the fleet with another brake in one pool."""
    pool_of = of.pools[position].model_copy(update={"drop_overload": percent})
    return with_changed(of, {position: pool_of})


def test_a_changed_pool_is_found_by_identity() -> None:
    """Everything else costs nothing to compare."""
    old = three()
    new = braked(old, 1, 5.0)
    ((position, was, now),) = changed(old, new)
    assert (position, was, now) == (1, old.pools[1], new.pools[1])
    assert changed(old, old) == ()
    assert changed(new, old)[0].now is old.pools[1]


@pytest.mark.parametrize(
    "update",
    [
        {"on_reject": "keep"},
        {"pools": lambda old: old.pools[:2]},
        {"pools": lambda old: (old.pools[1], old.pools[0], old.pools[2])},
        {"pools": lambda old: (old.pools[0].model_copy(update={"name": "z"}), *old.pools[1:])},
    ],
    ids=["another field", "fewer", "reordered", "renamed"],
)
def test_any_other_difference_is_no_step(update: dict) -> None:
    """Rule 1: what depends on other fields, names or order is made anew."""
    old = three()
    fields = {name: value(old) if callable(value) else value for name, value in update.items()}
    assert changed(old, old.model_copy(update=fields)) is None


def test_more_changed_pools_than_the_bound_are_no_step() -> None:
    """A step over most of a fleet is no faster than making it anew."""
    pools = [pool(f"p{n}", endpoints=[endpoint(n, grpc=None)]) for n in range(MAX_CHANGED + 1)]
    old = fleet(*pools)
    copies = {n: each.model_copy() for n, each in enumerate(old.pools)}
    assert changed(old, with_changed(old, copies)) is None
    del copies[0]
    assert len(changed(old, with_changed(old, copies))) == MAX_CHANGED


def test_a_value_is_stepped_from_the_nearest_fleet_that_is_known() -> None:
    """Of several known fleets the one with the fewest differences is taken."""
    seen: list[int] = []

    def step(before: float, changes: successive.Changes, _: Fleet) -> float:
        seen.append(len(changes))
        return before + sum(each.now.drop_overload - each.was.drop_overload for each in changes)

    total = Successive(lambda of: sum(each.drop_overload for each in of.pools), step)
    first = three()
    second = braked(first, 0, 1.0)
    third = braked(second, 1, 2.0)
    assert [total(first), total(second), total(third), total(first)] == [0, 1, 3, 0]
    assert total(braked(third, 2, 4.0)) == 7
    assert seen == [1, 1, 1]


def test_a_step_that_declines_is_made_anew() -> None:
    """The whole function is always right."""
    names = Successive(lambda of: [each.name for each in of.pools], lambda *_: None)
    old = three()
    assert names(old) == names(braked(old, 0, 1.0)) == ["a", "b", "c"]


def test_known_values_and_comparisons_are_bounded() -> None:
    """Rule 3: fleets are not kept alive, and few values are."""
    count = Successive(lambda of: len(of.pools), lambda *_: None)
    old = three()
    for number in range(3 * PAIRS):
        assert count(braked(old, 0, number % 50)) == 3
    assert len(count._known) <= KEPT
    assert len(successive._compared) <= PAIRS
    gc.collect()
    assert sum(subject() is not None for subject, _ in count._known) <= 1


def test_a_mapped_fleet_keeps_its_identity_while_nothing_in_it_changes() -> None:
    """What is built of it is then found without a comparison."""

    def calm(each: PoolSpec) -> PoolSpec:
        return each.model_copy(update={"drop_overload": 0.0})

    mapped, old = each_pool(calm), three()
    made = mapped(old)
    assert mapped(braked(old, 1, 9.0)) is made
    other = with_changed(old, {1: old.pools[1].model_copy(update={"default": True})})
    assert mapped(other).pools[1].default
    assert mapped(other).pools[0] is made.pools[0]


def test_edited_endpoints_are_paired_unless_one_came_or_went() -> None:
    """An edit of one endpoint out of ten thousand is looked at alone."""
    (old,) = fleet(pool()).pools
    edited = old.endpoints[1].model_copy(update={"capacity": 3.0})
    new = old.model_copy(update={"endpoints": (old.endpoints[0], edited, *old.endpoints[2:])})
    assert edited_endpoints(old, new) == ((old.endpoints[1], edited),)
    assert edited_endpoints(old, old) == ()
    fewer = old.model_copy(update={"endpoints": old.endpoints[1:]})
    assert edited_endpoints(old, fewer) is None
    swapped = old.model_copy(update={"endpoints": old.endpoints[::-1]})
    assert edited_endpoints(old, swapped) is None
