"""Changes at run time, and how they meet an edited file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.change import (
    BadChange,
    UnknownName,
    merge,
    set_draining,
    set_section,
    set_weights,
)
from xds_server.fleet.model.fields import MAX_WEIGHT_SUM
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


def test_weights_not_named_stay() -> None:
    """Only what is named changes, and the argument stays as it was."""
    before = fleet()
    assert weights(set_weights(before, "llm", {"canary": 50})) == {"stable": 90, "canary": 50}
    assert weights(before) == {"stable": 90, "canary": 10}


def test_an_unknown_pool_has_a_suggestion() -> None:
    """The nearest name is offered."""
    with pytest.raises(UnknownName, match="no pool 'lm'; did you mean 'llm'"):
        set_weights(fleet(), "lm", {"stable": 1})


def test_an_unknown_variant_has_a_suggestion() -> None:
    """The message names the pool."""
    with pytest.raises(UnknownName, match="variant of pool 'llm' 'stabel'; did you mean 'stable'"):
        set_weights(fleet(), "llm", {"stabel": 1})


def test_without_a_near_name_those_that_exist_are_listed() -> None:
    """Someone far off sees what there is."""
    with pytest.raises(UnknownName, match="there are canary, stable"):
        set_weights(fleet(), "llm", {"zzz": 1})


def test_an_empty_fleet_has_no_endpoint_to_suggest() -> None:
    """The sentence still ends well."""
    with pytest.raises(UnknownName, match="there are none"):
        set_draining(fleet(pool(endpoints=[])), "r1", draining=True)


@pytest.mark.parametrize("weight", [-1, MAX_WEIGHT_SUM + 1])
def test_weights_are_in_range(weight: int) -> None:
    """What Envoy could not take is refused."""
    with pytest.raises(BadChange, match="not between"):
        set_weights(fleet(), "llm", {"stable": weight})


def test_no_weights_are_no_change() -> None:
    """A command without weights is a slip."""
    with pytest.raises(BadChange, match="write for example"):
        set_weights(fleet(), "llm", {})


def test_a_drain_means_the_replica_in_every_pool() -> None:
    """One replica leaves as a whole."""
    assert drained(set_draining(two_pools(), "r1", draining=True)) == ["llm/r1", "b/r1"]


def test_a_drain_may_mean_one_pool() -> None:
    """``pool/id`` drains one model of a replica."""
    assert drained(set_draining(two_pools(), "b/r1", draining=True)) == ["b/r1"]


def test_a_drain_can_be_taken_back() -> None:
    """Undraining ends where one began."""
    both = two_pools()
    assert set_draining(set_draining(both, "r1", draining=True), "r1", draining=False) == both


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("r9", "no endpoint 'r9'; there are r1, r2, r3"),
        ("b/r2", "no endpoint of pool 'b' 'r2'"),
        ("c/r1", "no pool 'c'"),
    ],
)
def test_an_unknown_endpoint_is_told(name: str, words: str) -> None:
    """Pool and endpoint are told apart."""
    with pytest.raises(UnknownName, match=words):
        set_draining(two_pools(), name, draining=True)


def test_the_first_file_wins() -> None:
    """Without an earlier file every line of it is new."""
    assert merge(None, split(50, 50), split(1, 2)) == split(50, 50)


def test_untouched_weights_survive_an_edit() -> None:
    """An edit elsewhere in the file does not undo a canary."""
    edited = split(90, 10, routing={"fallbacks": 1})
    merged = merge(split(90, 10), edited, split(80, 20))
    assert weights(merged) == {"stable": 80, "canary": 20}
    assert merged.pools[0].routing.fallbacks == 1


def test_an_edited_weight_takes_the_whole_pool_back() -> None:
    """One weight means nothing without the others, so the file's set wins as a whole."""
    merged = merge(split(90, 10), split(95, 10), split(80, 20))
    assert weights(merged) == {"stable": 95, "canary": 10}


def test_a_new_variant_brings_the_files_weights() -> None:
    """Live weights that lack a variant are no split of the new pool."""
    new = fleet(pool(variants=[{"name": "stable", "weight": 5}, {"name": "canary", "weight": 6}]))
    old = fleet(pool(variants=[{"name": "stable", "weight": 5}], endpoints=[endpoint(1)]))
    assert weights(merge(old, new, old)) == {"stable": 5, "canary": 6}


def test_an_untouched_drain_survives_an_edit() -> None:
    """A replica taken out by hand stays out."""
    live = set_draining(fleet(), "r1", draining=True)
    assert drained(merge(fleet(), fleet(pool(default=False)), live)) == ["llm/r1"]


def test_an_edited_drain_wins() -> None:
    """What the edit touched is the file's."""
    out = set_draining(fleet(), "r1", draining=True)
    assert drained(merge(out, fleet(), out)) == []
    assert drained(merge(fleet(), out, fleet())) == ["llm/r1"]


def test_new_pools_and_endpoints_are_the_files() -> None:
    """Nothing live is known of them."""
    new = fleet(
        pool(default=True), pool("b", variants=[{"name": "stable"}], endpoints=[endpoint(1)])
    )
    assert merge(fleet(), new, fleet()).pools[1] == new.pools[1]


WEIGHTS = st.tuples(st.integers(0, 3), st.integers(0, 3))


@given(WEIGHTS, WEIGHTS)
def test_a_file_that_did_not_change_changes_nothing(filed, live) -> None:
    """Merging the same file again leaves the live fleet alone."""
    assert merge(split(*filed), split(*filed), split(*live)) == split(*live)


@given(WEIGHTS, WEIGHTS)
def test_without_operators_the_file_is_the_fleet(old, new) -> None:
    """If nobody changed anything at run time, the edited file is what results."""
    assert merge(split(*old), split(*new), split(*old)) == split(*new)


def test_limits_not_named_stay() -> None:
    """A field is set by itself, the others keep their values."""
    before = fleet(pool(circuit_breaker={"max_pending": 5}))
    (after,) = set_section(before, "llm", "circuit_breaker", {"max_requests": 9}).pools
    assert (after.circuit_breaker.max_pending, after.circuit_breaker.max_requests) == (5, 9)


def test_a_ramp_can_be_set() -> None:
    """Seconds are seconds."""
    (after,) = set_section(fleet(), "llm", "slow_start", {"window": 2.5}).pools
    assert after.slow_start.window == 2.5


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "it has|nothing given"),
        ({"max_request": 1}, "has no 'max_request'; it has max_connections"),
        ({"max_requests": 0}, "circuit_breaker.max_requests"),
        ({"max_requests": 1.5}, "circuit_breaker.max_requests"),
    ],
)
def test_bad_limits_are_refused(values, words: str) -> None:
    """The message names the field."""
    with pytest.raises(BadChange, match=words):
        set_section(fleet(), "llm", "circuit_breaker", values)


def test_limits_set_at_run_time_survive_an_edit_elsewhere() -> None:
    """The file takes them over only where the edit touched them."""
    file = fleet(pool(circuit_breaker={"max_pending": 5}))
    live = set_section(file, "llm", "circuit_breaker", {"max_requests": 9})
    (kept,) = merge(file, fleet(pool(zones=["a"], circuit_breaker={"max_pending": 5})), live).pools
    assert kept.circuit_breaker == live.pools[0].circuit_breaker
    assert kept.zones == ("a",)
    edited = fleet(pool(circuit_breaker={"max_pending": 6}))
    assert merge(file, edited, live) == edited
