"""The router's state for debugging, and the explanations of decisions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ext_proc.routing.explain import EVERY, GAP_S, KEPT
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.values.pool import Variant
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.settings import ModelNeeds

if TYPE_CHECKING:
    from .conftest import Build

BLOCKS = tuple(range(40))


def test_the_state_is_json_and_says_what_is_known(build: Build) -> None:
    """The state has load, cache and readings with their age; unknown values are null."""
    router = build.router(build.pool(1))
    router.registry.observe("r0", [Reading(at=1.0, model="m", queued=3.0)])
    decision = router.decide(build.request((1, 2)), 2.0, 0.0)
    assert isinstance(decision, Decision)
    state = json.loads(json.dumps(router.state(2.5)))
    endpoint = state["pools"]["llm"]["endpoints"]["r0"]
    assert (endpoint["in_flight"], endpoint["work_tokens"], endpoint["index_blocks"]) == (1, 128, 2)
    assert endpoint["others_queued"] == 3.0
    assert endpoint["readings"][0]["age_s"] == 1.5
    assert endpoint["readings"][0]["kv_used"] is None
    assert state["counters"]["open_tickets"] == 1
    assert state["counters"]["settled"] == {}


def test_an_explanation_shows_prices_and_parts(build: Build) -> None:
    """The cheapest comes first, each price is the sum of its terms, and no state changes."""
    router = build.router(build.pool(3))
    router.decide(build.request(BLOCKS), 0.0, 0.0)
    before = router.state(0.0)
    explained: dict[str, Any] = json.loads(
        json.dumps(router.explain(build.request(BLOCKS), 0.0, 0.0))
    )
    assert router.state(0.0) == before
    candidates = explained["candidates"]
    assert (explained["policy"], explained["blocks"], len(candidates)) == ("auto", 40, 3)
    assert candidates[0]["matched_blocks"] == 40
    assert candidates[0]["behind"] == 0.0
    for each in candidates:
        assert each["price"] == pytest.approx(sum(each["parts"].values()))
    decision = router.decide(build.request(BLOCKS), 0.0, 0.0)
    assert isinstance(decision, Decision)
    assert decision.ticket is not None
    assert decision.ticket.endpoint.id == candidates[0]["id"]


def test_an_explanation_names_the_filter_that_removed_each_other(build: Build) -> None:
    """The filters are: variant, protocol, draining, subset, in-flight limit."""
    pool = build.pool(
        variants=(Variant("stable", 1), Variant("canary", 0)),
        per_endpoint_in_flight=1,
        endpoints=(
            build.endpoint(0),
            build.endpoint(1, variant="canary"),
            build.endpoint(2, http=None),
            build.endpoint(3, draining=True),
            build.endpoint(4),
            build.endpoint(5),
        ),
    )
    router = build.router(pool)
    router.decide(build.request(subset=frozenset({"10.0.0.5"})), 0.0, 0.0)
    request = build.request(subset=frozenset({"10.0.0.0", "10.0.0.5"}))
    removed = {
        "r1": "variant",
        "r2": "protocol",
        "r3": "draining",
        "r4": "subset",
        "r5": "at-limit",
    }
    assert router.explain(request, 0.0, 0.0)["removed"] == removed
    router.decide(request, 0.0, 0.0)
    refused = router.explain(request, 0.0, 0.0)
    assert refused["refused"] == "saturated"
    assert refused["removed"] == {**removed, "r0": "at-limit", "r1": "subset"}
    unknown = router.explain(build.request(pool="x"), 0.0, 0.0)
    assert unknown["refused"] == "unknown-pool"


def test_in_a_large_pool_the_rest_is_counted(build: Build) -> None:
    """Endpoints that were not sampled as candidates are counted, not listed."""
    router = build.router(build.pool(200))
    explained: dict[str, Any] = router.explain(build.request(BLOCKS), 0.0, 0.0)
    assert explained["removed"] == {}
    assert explained["not_drawn"] + len(explained["candidates"]) == 200


def test_recent_decisions_are_a_bounded_sample(build: Build) -> None:
    """Every 32nd decision is kept where they come fast, and of these the latest 64."""
    router = build.router(build.pool(2))
    for number in range(EVERY * (KEPT + 3)):
        router.decide(build.request((1,)), number / EVERY / 2, 0.0)
    recent: Any = json.loads(json.dumps(router.state(number / EVERY / 2)["recent"]))
    assert len(recent) == KEPT
    assert recent[0]["age_s"] > recent[-1]["age_s"] == pytest.approx((EVERY - 1) / EVERY / 2, 0.01)
    assert recent[0]["matched_blocks"] == 1
    assert set(recent[0]["scores"]) == {"r0", "r1"}


def test_constraints_and_preferences_are_explained(build: Build) -> None:
    """An unmet constraint removes an endpoint; an unmet preference puts it behind."""
    pool = build.pool(
        endpoints=(
            build.endpoint(0, zone="a", device="x"),
            build.endpoint(1, zone="b", device="x"),
            build.endpoint(2, zone="a"),
        ),
        policy="least-in-flight",
        prefer_zone=True,
        model_needs=(ModelNeeds("m", device="x", device_required=True),),
    )
    router = build.router(pool, zone="a")
    explained: Any = router.explain(build.request(), 0.0, 0.0)
    assert explained["removed"] == {"r2": "device"}
    first, second = explained["candidates"]
    assert (first["id"], first["lacks"]) == ("r0", [])
    assert (second["id"], second["lacks"]) == ("r1", ["zone"])
    assert second["behind"] > 0


def test_a_hop_is_a_part_of_the_price(build: Build) -> None:
    """Where prices are seconds, another zone is no missing preference."""
    endpoints = (build.endpoint(0, zone="a"), build.endpoint(1, zone="b"))
    pool = build.pool(endpoints=endpoints, prefer_zone=True, zone_hop_s=0.25)
    explained: Any = build.router(pool, zone="a").explain(build.request(), 0.0, 0.0)
    first, second = explained["candidates"]
    assert (first["id"], "hop_s" in first["parts"]) == ("r0", False)
    assert (second["lacks"], second["parts"]["hop_s"]) == ([], 0.25)
    assert second["behind"] == pytest.approx(0.25)
    assert second["price"] == pytest.approx(sum(second["parts"].values()))


def test_a_sample_holds_the_parts_of_its_moment(build: Build) -> None:
    """The terms add up to the prices before the decision, not to those after it."""
    router = build.router(build.pool(2))
    router.decide(build.request(BLOCKS), 0.0, 0.0)
    recent: Any = router.state(1.0)["recent"]
    (sample,) = recent
    assert sample["scores"] == {each["id"]: each["price"] for each in sample["candidates"]}
    for each in sample["candidates"]:
        assert each["price"] == pytest.approx(sum(each["parts"].values()))
        assert each["parts"]["drain_s"] == 0.0
    assert (sample["removed"], sample["not_drawn"]) == ({}, 0)


def test_a_decision_after_a_quiet_time_is_sampled(build: Build) -> None:
    """Where few requests come, each is explained; a count alone would show old ones."""
    router = build.router(build.pool(2))
    for at in (0.0, 0.9, 1.0, 1.5, 60.0):
        router.decide(build.request((1,)), at, 0.0)
    recent: Any = router.state(60.0)["recent"]
    assert [each["age_s"] for each in recent] == [60.0, 59.0, 0.0]


def test_samples_are_apart_in_time(build: Build) -> None:
    """At any rate of decisions, at most one sample is taken per quarter of a second."""
    router = build.router(build.pool(2))
    for number in range(EVERY * 100):
        router.decide(build.request(), number * GAP_S / EVERY / 10, 0.0)
    recent: Any = router.state(100.0)["recent"]
    assert len(recent) == 10


def test_a_sample_of_a_huge_pool_looks_at_candidates_only(build: Build) -> None:
    """The reasons for the other endpoints are then null, not empty."""
    router = build.router(build.pool(300))
    router.decide(build.request(BLOCKS), 0.0, 0.0)
    recent: Any = router.state(1.0)["recent"]
    assert (recent[0]["removed"], recent[0]["not_drawn"]) == (None, None)
    assert recent[0]["candidates"]
