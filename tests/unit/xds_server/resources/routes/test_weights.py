"""Weights as runtime values: keys, layers, and routes for Envoys without the layers."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from support.envoy_messages import read_routes
from support.fleets import endpoint, fleet, pool
from tidegate.stack.assets import asset
from tidegate_api.names import RUNTIME_NAME, WEIGHT_LAYERS
from xds_server.fleet.model.fleet import Fleet
from xds_server.resources.routes.table import route_configuration
from xds_server.resources.routes.weights import (
    layer_of,
    merged,
    neutral,
    weight_layer,
    weights_in,
    weights_of,
    with_literal_weights,
)


def variants(*weights: int, version: str | None = None) -> list[dict[str, Any]]:
    """Return variants a, b, ... with these weights."""
    return [
        {"name": name, "weight": weight, "model_version": version}
        for name, weight in zip("abcd", weights, strict=False)
    ]


def one(*weights: int, version: str | None = None, replicas: str = "ab") -> Fleet:
    """Return a fleet of one pool with a replica in each of the variants ``replicas``."""
    endpoints = [endpoint(n, variant=name) for n, name in enumerate(replicas, 1)]
    made = variants(*weights, version=version)
    return fleet(pool(default=True, variants=made, endpoints=endpoints))


def values(found: Fleet) -> dict[str, int]:
    """Return all runtime keys and weights of a fleet."""
    return {key: value for layer in weights_of(found).values() for key, value in layer.items()}


def draws(routes: bytes, held: dict[str, int]) -> list[dict[str, int]]:
    """Return the weights by cluster of each route's draw, as Envoy computes them."""
    found = []
    for route in read_routes(routes).values():
        split = route.route.weighted_clusters
        if split.clusters:
            prefix = split.runtime_key_prefix
            found.append(
                {c.name: held.get(f"{prefix}.{c.name}", c.weight.value) for c in split.clusters}
            )
    return found


def test_a_change_of_weights_leaves_the_routes_as_they_are() -> None:
    """Also from 0, which is how a canary begins."""
    before, after = neutral(one(100, 0)), neutral(one(90, 10))
    assert route_configuration(before) == route_configuration(after)
    assert values(one(100, 0)) != values(one(90, 10))


def test_each_draw_finds_its_weights() -> None:
    """The keys of routes and layers are the same, for both protocols."""
    found = one(90, 10)
    for split in draws(route_configuration(neutral(found)), values(found)):
        assert sorted(split.values()) == [10, 90]


def test_variants_that_share_a_pinned_version_never_add_up_to_nothing() -> None:
    """Their weights may all be 0: a request that names the version gets equal shares."""
    shared = [*variants(0, 0, version="2"), {"name": "c", "weight": 1}]
    endpoints = [endpoint(n, variant=name) for n, name in enumerate("abc", 1)]
    found = fleet(pool(default=True, variants=shared, endpoints=endpoints))
    splits = draws(route_configuration(neutral(found)), values(found))
    assert {"llm/a/http": 1, "llm/b/http": 1} in splits
    assert {"llm/a/http": 0, "llm/b/http": 0, "llm/c/http": 1} in splits


def test_without_its_layers_an_envoy_draws_among_variants_with_replicas() -> None:
    """An empty cluster would answer 503."""
    for split in draws(route_configuration(neutral(one(1, 0, 0, replicas="ac"))), {}):
        assert [split[f"llm/{name}/{p}"] for name in "abc" for p in ("http", "grpc") if
                f"llm/{name}/{p}" in split] == [1, 0, 1]  # fmt: skip


def test_a_pool_with_one_variant_has_no_keys() -> None:
    """There is nothing to draw."""
    assert values(one(1, replicas="a")) == {}


def test_weights_above_31_bits_are_kept() -> None:
    """Envoy reads a number of a layer as an integer only below 2^31; text has no such bound."""
    most = 2**32 - 1
    assert weights_in(weight_layer(WEIGHT_LAYERS[0], {"k": most, "z": 0})) == {"k": most, "z": 0}


def test_a_pool_is_in_one_layer_for_good() -> None:
    """Its place must not depend on the process, nor on other pools."""
    assert layer_of("llm") == "tidegate-weights-21"
    names = {layer_of(f"p{n}") for n in range(500)}
    assert names == set(WEIGHT_LAYERS)


def test_the_bootstrap_names_all_layers_below_the_operators() -> None:
    """An Envoy gets only layers that its bootstrap names; the admin layer overrides them."""
    layers = yaml.safe_load(asset("envoy/bootstrap.yaml").read_text("utf-8"))["layered_runtime"]
    assert [layer["name"] for layer in layers["layers"]] == [RUNTIME_NAME, *WEIGHT_LAYERS, "admin"]
    for layer in layers["layers"][:-1]:
        assert layer["rtds_layer"]["name"] == layer["name"]
        assert layer["rtds_layer"]["rtds_config"]["initial_fetch_timeout"] == "2s"


@pytest.mark.parametrize("weights", [(100, 0), (90, 10), (0, 1), (2**32 - 2, 1), (1, 2, 3)])
def test_with_literal_weights_routes_contain_the_weights(weights: tuple[int, ...]) -> None:
    """Routes of an Envoy without the layers read no keys, and draw no variant of weight 0."""
    found = one(*weights, replicas="abc"[: len(weights)])
    spelled = with_literal_weights(route_configuration(neutral(found)), values(found))
    drawn = {f"llm/{name}/http": w for name, w in zip("abc", weights, strict=False) if w}
    route = read_routes(spelled)["llm/http"]
    assert b"tidegate.weight" not in spelled
    if len(drawn) == 1:
        assert {route.route.cluster} == drawn.keys()
    else:
        split = route.route.weighted_clusters
        assert {one.name: one.weight.value for one in split.clusters} == drawn
        assert split.use_hash_policy.value


WEIGHTS = st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any)
VERSIONS = st.sampled_from([None, "1", "2"])


@st.composite
def splits(draw: Any) -> Fleet:
    """Draw a fleet of one pool whose variants have random names, order, versions and weights."""
    names = draw(st.permutations("abcd"))
    made = [
        {"name": name, "weight": weight, "model_version": draw(VERSIONS)}
        for name, weight in zip(names, draw(WEIGHTS), strict=False)
    ]
    return fleet(
        pool(default=True, variants=made, endpoints=[endpoint(1, variant=made[0]["name"])])
    )


@settings(max_examples=60)
@given(old=splits(), new=splits())
def test_no_order_of_arrival_makes_a_draw_of_nothing(old: Fleet, new: Fleet) -> None:
    """Old and new routes, with the weights before, at and after the switch: never a sum of 0."""
    before, after = weights_of(old), weights_of(new)
    layers = [before, merged(after, before), merged(before, after), after]
    held = [{k: v for layer in each.values() for k, v in layer.items()} for each in layers]
    was, now = (route_configuration(neutral(each)) for each in (old, new))
    for routes, states in ((was, held[:3]), (now, held[1:])):
        for state in states:
            for split in draws(routes, state):
                assert sum(split.values()) >= 1
    # And they are the fleet's own weights, never a mixture.
    assert draws(was, held[1]) == draws(was, held[0])
    assert draws(now, held[2]) == draws(now, held[3])
