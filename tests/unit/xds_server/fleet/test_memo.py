"""Values by identity: computed once per object, and forgotten with it."""

from __future__ import annotations

from support.fleets import fleet, pool
from xds_server.fleet.memo import FORMS, ByIdentity, shared


def test_a_value_is_computed_once_per_object() -> None:
    """An equal object is another subject."""
    seen = []
    size = ByIdentity(lambda each: seen.append(each.name) or len(each.endpoints))
    one, two = pool_of(), pool_of()
    assert one == two
    assert [size(one), size(one), size(two)] == [len(one.endpoints)] * 3
    assert len(seen) == 2


def test_values_by_further_arguments_are_bounded() -> None:
    """A replica may be told of in ever other ways."""
    seen = []
    name = ByIdentity(lambda each, more: seen.append(more) or f"{each.name}{more}")
    one = pool_of()
    assert [name(one, n) for n in (1, 2, 1)] == ["llm1", "llm2", "llm1"]
    assert seen == [1, 2]
    for n in range(FORMS + 2):
        name(one, n)
    assert name(one, 1) == "llm1"
    assert seen.count(1) == 2


def test_a_value_that_is_its_subject_keeps_nothing_alive() -> None:
    """It would keep itself."""
    same = ByIdentity(lambda each: each)
    one = pool_of()
    assert same(one) is one
    assert len(same) == 0


def test_values_are_forgotten_with_their_subjects() -> None:
    """The number of values is bounded by that of live objects."""
    name = ByIdentity(lambda each: each.name)
    for _ in range(100):
        name(pool_of())
    assert len(name) <= 1
    kept = [pool_of() for _ in range(3)]
    assert [name(each) for each in kept] == ["llm"] * 3
    assert len(name) == 3


def test_an_equal_fleet_takes_over_all_objects() -> None:
    """Equality is checked once; what follows compares identities."""
    old, new = fleet(pool()), fleet(pool())
    result = shared(old, new)
    assert result == new
    assert result.pools is old.pools
    assert result.listener is old.listener


def test_of_a_changed_pool_the_equal_parts_are_taken_over() -> None:
    """A drain leaves the other endpoints of its pool alone."""
    old = fleet(pool())
    changed = pool_of().model_copy(update={"drop_overload": 3.0})
    result = shared(old, old.model_copy(update={"pools": (changed,)}))
    assert result.pools[0].drop_overload == 3.0
    assert result.pools[0].endpoints is old.pools[0].endpoints


def pool_of():
    """Return a pool, a new object at each call."""
    return fleet(pool()).pools[0]
