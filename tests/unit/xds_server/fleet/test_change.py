"""Changes at run time, and their merge with an edited file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fleets import endpoint, fleet, pool
from tidegate_api.pools import MAX_WEIGHT_SUM
from xds_server.fleet.change import (
    BadChange,
    UnknownName,
    merge,
    set_draining,
    set_section,
    set_standby,
    set_weights,
)
from xds_server.fleet.model.fleet import Fleet


def weights(of: Fleet, name: str = "llm") -> dict[str, int]:
    """Return the weights of a pool."""
    (found,) = (p for p in of.pools if p.name == name)
    return {variant.name: variant.weight for variant in found.variants}


def drained(of: Fleet) -> list[str]:
    """Return ``pool/id`` of the endpoints that drain."""
    return [f"{p.name}/{e.id}" for p in of.pools for e in p.endpoints if e.draining]


def split(stable: int, canary: int, **more) -> Fleet:
    """Return the usual fleet with these weights."""
    variants = [{"name": "stable", "weight": stable}, {"name": "canary", "weight": canary}]
    return fleet(pool(variants=variants, **more))


def two_pools() -> Fleet:
    """Return two pools that share a replica."""
    return fleet(
        pool(default=True), pool("b", variants=[{"name": "stable"}], endpoints=[endpoint(1)])
    )


def test_an_unknown_pool_has_a_suggestion() -> None:
    """The error suggests the closest name."""
    with pytest.raises(UnknownName, match="no pool 'lm'; did you mean 'llm'"):
        set_weights(fleet(), "lm", {"stable": 1})


def test_without_a_close_name_the_existing_names_are_listed() -> None:
    """The error lists the existing names."""
    with pytest.raises(UnknownName, match="there are canary, stable"):
        set_weights(fleet(), "llm", {"zzz": 1})


def test_an_empty_fleet_has_no_endpoint_to_suggest() -> None:
    """The error states that there are none."""
    with pytest.raises(UnknownName, match="there are none"):
        set_draining(fleet(pool(endpoints=[])), "r1", draining=True)


@pytest.mark.parametrize("weight", [-1, MAX_WEIGHT_SUM + 1])
def test_weights_are_in_range(weight: int) -> None:
    """A weight that Envoy would reject is an error."""
    with pytest.raises(BadChange, match="not between"):
        set_weights(fleet(), "llm", {"stable": weight})


def test_no_weights_are_no_change() -> None:
    """A command without weights is an error."""
    with pytest.raises(BadChange, match="write for example"):
        set_weights(fleet(), "llm", {})


def test_a_drain_means_the_replica_in_every_pool() -> None:
    """It applies to every pool with the replica."""
    assert drained(set_draining(two_pools(), "r1", draining=True)) == ["llm/r1", "b/r1"]


def test_a_drain_may_mean_one_pool() -> None:
    """``pool/id`` drains one model of a replica."""
    assert drained(set_draining(two_pools(), "b/r1", draining=True)) == ["b/r1"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("r9", "no endpoint 'r9'; there are r1, r2, r3"),
        ("b/r2", "no endpoint of pool 'b' 'r2'"),
        ("c/r1", "no pool 'c'"),
    ],
)
def test_an_unknown_endpoint_is_reported(name: str, words: str) -> None:
    """The error distinguishes pool and endpoint."""
    with pytest.raises(UnknownName, match=words):
        set_draining(two_pools(), name, draining=True)


def test_the_first_file_takes_precedence() -> None:
    """Without an earlier file all its values are new."""
    assert merge(None, split(50, 50), split(1, 2)) == split(50, 50)


def test_untouched_weights_survive_an_edit() -> None:
    """An edit elsewhere in the file does not undo a canary."""
    edited = split(90, 10, routing={"fallbacks": 1})
    merged = merge(split(90, 10), edited, split(80, 20))
    assert weights(merged) == {"stable": 80, "canary": 20}
    assert merged.pools[0].routing.fallbacks == 1


def test_an_edited_weight_restores_all_weights_of_the_pool() -> None:
    """A single weight has no meaning, so all weights of the file take precedence."""
    merged = merge(split(90, 10), split(95, 10), split(80, 20))
    assert weights(merged) == {"stable": 95, "canary": 10}


def test_a_new_variant_restores_the_files_weights() -> None:
    """Live weights without the new variant are no valid split."""
    new = fleet(pool(variants=[{"name": "stable", "weight": 5}, {"name": "canary", "weight": 6}]))
    old = fleet(pool(variants=[{"name": "stable", "weight": 5}], endpoints=[endpoint(1)]))
    assert weights(merge(old, new, old)) == {"stable": 5, "canary": 6}


def test_an_untouched_drain_survives_an_edit() -> None:
    """A replica that an operator drained stays drained."""
    live = set_draining(fleet(), "r1", draining=True)
    assert drained(merge(fleet(), fleet(pool(default=False)), live)) == ["llm/r1"]


def test_an_edited_drain_takes_precedence() -> None:
    """A value that the edit changed comes from the file."""
    out = set_draining(fleet(), "r1", draining=True)
    assert drained(merge(out, fleet(), out)) == []
    assert drained(merge(fleet(), out, fleet())) == ["llm/r1"]


def test_new_pools_and_endpoints_are_the_files() -> None:
    """They have no live values."""
    new = fleet(
        pool(default=True), pool("b", variants=[{"name": "stable"}], endpoints=[endpoint(1)])
    )
    assert merge(fleet(), new, fleet()).pools[1] == new.pools[1]


WEIGHTS = st.tuples(st.integers(0, 3), st.integers(0, 3))


@given(WEIGHTS, WEIGHTS)
def test_a_file_that_did_not_change_changes_nothing(filed, live) -> None:
    """Merging the same file again does not change the live fleet."""
    assert merge(split(*filed), split(*filed), split(*live)) == split(*live)


@given(WEIGHTS, WEIGHTS)
def test_without_operators_the_file_is_the_fleet(old, new) -> None:
    """Without changes at run time the result is the edited file."""
    assert merge(split(*old), split(*new), split(*old)) == split(*new)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "it has|nothing given"),
        ({"max_request": 1}, "has no 'max_request'; it has max_connections"),
        ({"max_requests": 0}, "circuit_breaker.max_requests"),
        ({"max_requests": 1.5}, "circuit_breaker.max_requests"),
    ],
)
def test_bad_limits_are_rejected(values, words: str) -> None:
    """The message names the field."""
    with pytest.raises(BadChange, match=words):
        set_section(fleet(), "llm", "circuit_breaker", values)


def test_limits_set_at_run_time_survive_an_edit_elsewhere() -> None:
    """The file replaces them only if the edit changed them."""
    file = fleet(pool(circuit_breaker={"max_pending": 5}))
    live = set_section(file, "llm", "circuit_breaker", {"max_requests": 9})
    (kept,) = merge(file, fleet(pool(zones=["a"], circuit_breaker={"max_pending": 5})), live).pools
    assert kept.circuit_breaker == live.pools[0].circuit_breaker
    assert kept.zones == ("a",)
    edited = fleet(pool(circuit_breaker={"max_pending": 6}))
    assert merge(file, edited, live) == edited


def test_a_standby_is_taken_into_use_and_back() -> None:
    """In every pool, or in one."""
    one = fleet(
        pool("a", endpoints=[endpoint(1, standby=True)]), pool("b", endpoints=[endpoint(1)])
    )
    both = set_standby(one, "r1", True)
    assert [each.endpoints[0].standby for each in both.pools] == [True, True]
    assert set_standby(both, "b/r1", False) == one
    assert set_standby(one, "a/r1", True) == one
    with pytest.raises(UnknownName, match="no endpoint 'r9'"):
        set_standby(one, "r9", True)
    with pytest.raises(UnknownName, match="no endpoint of pool 'b' 'r9'"):
        set_standby(one, "b/r9", True)


def test_a_promotion_survives_an_edit() -> None:
    """As a drain does, unless the edit says otherwise."""
    last = fleet(pool(endpoints=[endpoint(1), endpoint(2, standby=True)]))
    live = set_standby(last, "r2", False)
    edited = fleet(pool(endpoints=[endpoint(1), endpoint(2, standby=True), endpoint(3)]))
    assert [each.standby for each in merge(last, edited, live).pools[0].endpoints] == [False] * 3
    turned = fleet(pool(endpoints=[endpoint(1, standby=True), endpoint(2, standby=True)]))
    merged = merge(last, turned, live).pools[0].endpoints
    assert [each.standby for each in merged] == [True, False]
