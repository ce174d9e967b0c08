"""What Envoys are told of placement."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from support.fleets import endpoint, fleet, pool
from xds_server.applications.keepers import placement_keeper as module
from xds_server.applications.keepers.placement_keeper import placed_in
from xds_server.applications.traffic.placements import PlacedState, ReplicaModels
from xds_server.fleet.model.fleet import Fleet

MODELS = ("a", "b", "c")
STATES = ("READY", "LOADING", "UNAVAILABLE", "", None)


def replica(*, whole: bool = True, **models: str) -> ReplicaModels:
    """Return the states of a replica's models, in version 1."""
    found = {(name, "1"): PlacedState(state, "", 1.0) for name, state in models.items()}
    return ReplicaModels(1.0, whole, found)


def three(**more: Any) -> Fleet:
    """Return a pool of several models on three replicas."""
    given_ = {
        "match": {"models": MODELS},
        "variants": [{"name": "stable", "weight": 1}],
        "endpoints": [endpoint(1), endpoint(2), endpoint(3)],
    }
    return fleet(pool(**{**given_, **more}))


def test_a_model_that_is_not_everywhere_is_listed_where_it_is() -> None:
    """A model that all replicas have, or none has, leaves nothing to choose."""
    replicas = {
        "r1": replica(a="READY", b="READY"),
        "r2": replica(a="LOADING", b="READY"),
        "r3": replica(a="READY", b="READY", c="UNAVAILABLE"),
    }
    assert placed_in(three(), replicas) == (("llm", (("r1", ("a",)), ("r3", ("a",)))),)


def test_what_is_unknown_never_bars() -> None:
    """A replica that was not asked, or whose list was cut, is chosen like those that have it."""
    cut = replica(whole=False)
    replicas = {"r1": replica(a="READY"), "r2": replica()}
    assert placed_in(three(), replicas) == (("llm", (("r1", ("a",)), ("r3", ("a",)))),)
    assert placed_in(three(), {"r1": replica(a="READY"), "r2": cut}) == ()
    assert placed_in(three(), {"r2": replica()}) == ()
    assert placed_in(three(), {}) == ()


def test_a_replica_that_drains_is_not_looked_at() -> None:
    """Envoy gives it nothing: a model that only it has goes anywhere, as with a picker."""
    endpoints = [endpoint(1, draining=True), endpoint(2), endpoint(3)]
    replicas = {"r1": replica(a="READY"), "r2": replica(b="READY"), "r3": replica()}
    found = placed_in(three(endpoints=endpoints), replicas)
    assert found == (("llm", (("r2", ("b",)),)),)


def test_variants_are_looked_at_apart() -> None:
    """Each has a cluster of its own, and a version of its own if it names one."""
    variants = [
        {"name": "old", "weight": 1, "model_version": "1"},
        {"name": "new", "weight": 1, "model_version": "2"},
    ]
    endpoints = [endpoint(n, variant="old" if n < 3 else "new") for n in (1, 2, 3, 4)]
    both = ReplicaModels(1.0, True, {("a", v): PlacedState("READY", "", 1.0) for v in ("1", "2")})
    replicas = {
        "r1": replica(a="READY"),
        "r2": replica(),
        "r3": replica(a="READY"),
        "r4": both,
    }
    found = placed_in(three(variants=variants, endpoints=endpoints), replicas)
    assert found == (("llm", (("r1", ("a",)), ("r4", ("a",)))),)


def test_a_replica_with_a_higher_version_counts_as_one_without_the_model() -> None:
    """Over gRPC it would answer by that."""
    variants = [{"name": "stable", "weight": 1, "model_version": "1"}]
    both = ReplicaModels(1.0, True, {("a", v): PlacedState("READY", "", 1.0) for v in ("1", "2")})
    found = placed_in(three(variants=variants), {"r1": replica(a="READY"), "r2": both})
    assert found == (("llm", (("r1", ("a",)), ("r3", ("a",)))),)


def test_pools_that_name_no_models_list_what_their_replicas_name() -> None:
    """Their models are those that are there."""
    replicas = {"r1": replica(x="READY"), "r2": replica(), "r3": replica()}
    found = placed_in(three(match={"models": []}, default=True), replicas)
    assert found == (("llm", (("r1", ("x",)),)),)


def test_pools_of_one_model_and_those_that_are_not_asked_are_left_out() -> None:
    """Envoy's own health check asks for one model; `health.repository: false` is believed."""
    replicas = {"r1": replica(a="READY"), "r2": replica(), "r3": replica()}
    assert placed_in(three(match={"models": ["a"]}), replicas) == ()
    assert placed_in(three(health={"repository": False}), replicas) == ()


def test_what_is_listed_is_bounded(monkeypatch) -> None:
    """By whole models: one that would be listed for half of its replicas would overload them."""
    monkeypatch.setattr(module, "MAX_LISTED", 3)
    some = replica(a="READY", b="READY")
    found = placed_in(three(), {"r1": some, "r2": some, "r3": replica()})
    assert found == (("llm", (("r1", ("a",)), ("r2", ("a",)))),)


@given(st.lists(st.lists(st.sampled_from(STATES), min_size=3, max_size=3), min_size=3, max_size=3))
def test_a_listed_model_is_on_some_replica_and_not_on_all(states) -> None:
    """Whatever is reported: who is listed may have it, who is known not to have it never is."""
    replicas = {
        f"r{n}": replica(**{m: s for m, s in zip(MODELS, row, strict=True) if s is not None})
        for n, row in enumerate(states, 1)
    }
    listed = dict(dict(placed_in(three(), replicas)).get("llm", ()))
    for model, *column in zip(MODELS, *states, strict=True):
        here = {name for name, models in listed.items() if model in models}
        ready = {f"r{n}" for n, state in enumerate(column, 1) if state == "READY"}
        unknown = {f"r{n}" for n, state in enumerate(column, 1) if state == ""}
        uneven = ready and len(ready | unknown) < len(column)
        assert here == (ready | unknown if uneven else set())
