"""Rules over several fields of a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fleets import endpoint, fleet, pool
from tidegate_api.paths import ANY_MODEL_PATHS
from tidegate_api.pools import MAX_WEIGHT_SUM
from xds_server.fleet.load import load_text
from xds_server.fleet.rules.fleet import problems
from xds_server.fleet.view import defaults_of

CHAT = "/v1/chat/completions"


def found(*pools, **more) -> list[tuple[str, str]]:
    """Return place and message of each problem."""
    return [(problem.path, problem.message) for problem in problems(fleet(*pools, **more))]


def only(*pools, **more) -> tuple[str, str]:
    """Return the one problem."""
    (problem,) = found(*pools, **more)
    return problem


def other(name: str, number: int, **more) -> dict:
    """Return a pool with one replica of its own."""
    return pool(name, variants=[{"name": "stable"}], endpoints=[endpoint(number)], **more)


def test_an_edit_of_weights_is_held_to_their_sum() -> None:
    """Nothing else is read again where the fleet before was sound, and weights differ in size."""
    before, after = (
        fleet(pool(variants=[{"name": "stable", "weight": weight}, {"name": "canary"}]))
        for weight in (1, MAX_WEIGHT_SUM)
    )
    assert problems(before) == []
    (problem,) = problems(after, before)
    assert "add up to" in problem.message


def test_a_pool_name_is_unique() -> None:
    """Two pools of one name would share clusters."""
    path, message = found(pool(), other("llm", 5, match={"models": ["x"]}))[-1]
    assert path == "pools[1].name"
    assert "already used by pools[0]" in message


def test_the_name_of_unnamed_routes_is_reserved() -> None:
    """Such a pool would look like a route on which only the body names the pool."""
    assert only(pool("unnamed"))[0] == "pools[0].name"


def test_pools_of_any_model_are_told_apart() -> None:
    """One pool may say nothing of models; a second one would take the same requests."""
    assert found(pool(match={})) == []
    told = {path for path, _ in found(pool(match={}, default=True), other("b", 5, match={}))}
    assert told == {f"pools[1].match.paths[{n}]" for n in range(len(ANY_MODEL_PATHS))}


def test_a_model_belongs_to_one_pool() -> None:
    """Versions of one model are variants, not pools; gRPC calls have no path to tell them apart."""
    path, message = only(pool(default=True), other("b", 5, match={"models": ["new", "llm-model"]}))
    assert path == "pools[1].match.models[1]"
    assert "already belongs to pool 'llm'" in message


def split(name: str, number: int, paths: list[str], **more) -> dict:
    """Return a pool of the model `m` over HTTP."""
    http = [{"id": f"{name}-1", "http": f"127.0.0.1:80{number}"}]
    usual = {"match": {"models": ["m"], "paths": paths}, "endpoints": http}
    return pool(name, **{"variants": [{"name": "stable"}], **usual, **more})


@pytest.mark.parametrize(
    ("paths", "more", "why"),
    [
        (["/v1/embeddings", "/v1/completions"], {}, "has the path /v1/completions too"),
        ([], {}, "has no `paths`"),
        (
            ["/v1/chat/completions"],
            {"endpoints": [{"id": "g", "http": "127.0.0.1:8020", "grpc": "127.0.0.1:9020"}]},
            "has gRPC replicas",
        ),
    ],
)
def test_pools_of_one_model_must_be_told_apart(paths: list[str], more: dict, why: str) -> None:
    """Otherwise it would be chance which pool serves a request."""
    (problem,) = [
        message
        for path, message in found(
            split("a", 10, ["/v1/completions"]), split("b", 11, paths, **more)
        )
        if path == "pools[1].match.models[0]"
    ]
    assert "already belongs to pool 'a'" in problem
    assert why in problem


def test_only_one_pool_takes_every_model_of_a_path() -> None:
    """Two pools without models could not be told apart."""
    bare = {"match": {"paths": ["/v1/completions"]}}
    messages = [
        message for _, message in found(split("a", 10, [], **bare), split("b", 11, [], **bare))
    ]
    assert any("both take every model on /v1/completions" in each for each in messages)


@pytest.mark.parametrize("field", ["models", "paths"])
def test_nothing_is_listed_twice(field: str) -> None:
    """A repeated model or path is an error."""
    match = {"models": ["m"], "paths": []} | {
        field: ["/a", "/a"] if field == "paths" else ["a"] * 2
    }
    assert only(pool(match=match))[0] == f"pools[0].match.{field}[1]"


def test_tritons_own_paths_are_not_extra_paths() -> None:
    """They are routed by model already."""
    assert "remove it" in only(pool(match={"paths": ["/v2/models/a/infer"]}))[1]


def test_paths_need_http_replicas() -> None:
    """OpenAI paths cannot be served by replicas without an HTTP port."""
    replicas = [{"grpc": "127.0.0.1:1"}]
    path, _ = only(pool(match={"paths": [CHAT]}, endpoints=replicas, variants=[{"name": "stable"}]))
    assert path == "pools[0].match.paths"


def test_sessions_are_not_named_by_stripped_headers() -> None:
    """Envoy strips control headers before they could be hashed."""
    path, _ = only(pool(routing={"session_header": "x-envoy-me"}))
    assert path == "pools[0].routing.session_header"


def test_a_variant_name_is_unique() -> None:
    """Two variants of one name would share a cluster."""
    assert found(pool(variants=[{"name": "stable"}, {"name": "stable"}], endpoints=[]))[0][0] == (
        "pools[0].variants[1].name"
    )


def test_some_variant_has_weight() -> None:
    """With all weights 0 no request could be served."""
    variants = [{"name": "stable", "weight": 0}, {"name": "canary", "weight": 0}]
    assert "all weights" in only(pool(variants=variants))[1]


def test_weights_fit_into_envoys_sum() -> None:
    """Envoy rejects weighted clusters whose sum exceeds 32 bits."""
    variants = [{"name": "stable", "weight": MAX_WEIGHT_SUM}, {"name": "canary", "weight": 1}]
    assert str(MAX_WEIGHT_SUM + 1) in only(pool(variants=variants))[1]
    variants[1]["weight"] = 0
    assert found(pool(variants=variants)) == []


def test_a_weighted_variant_has_replicas() -> None:
    """A share of a variant without replicas would fail."""
    path, message = only(pool(endpoints=[endpoint(1)]))
    assert path == "pools[0].variants[1].weight"
    assert "has no replica," in message


def test_a_weighted_variant_speaks_what_the_pool_speaks() -> None:
    """Its share of the gRPC requests would fail if only the other variant spoke gRPC."""
    canary = {"id": "c", "http": "127.0.0.1:1", "variant": "canary"}
    assert "gRPC requests" in only(pool(endpoints=[endpoint(1), canary]))[1]


def test_pins_do_not_hide_each_other() -> None:
    """A variant after a more general pin would never match."""
    variants = [
        {"name": "stable", "match": {"headers": {"x-a": "1"}}},
        {"name": "canary", "match": {"headers": {"x-a": "1", "x-b": "2"}}},
    ]
    assert only(pool(variants=variants))[0] == "pools[0].variants[1].match"
    swapped = [{**variants[1], "name": "stable"}, {**variants[0], "name": "canary"}]
    assert found(pool(variants=swapped)) == []


def test_a_cookie_narrows_a_pin() -> None:
    """Headers and cookies together determine whether a variant can match."""
    variants = [
        {"name": "stable", "match": {"headers": {"x-a": "1"}, "cookies": {"ab": "b"}}},
        {"name": "canary", "match": {"headers": {"x-a": "1"}}},
    ]
    assert found(pool(variants=variants)) == []
    hidden = [{**variants[1], "name": "stable"}, {**variants[0], "name": "canary"}]
    assert only(pool(variants=hidden))[0] == "pools[0].variants[1].match"


def test_an_endpoint_id_is_unique_in_its_pool() -> None:
    """Two replicas of one id would share a ledger entry."""
    replicas = [endpoint(1), endpoint(2, id="r1"), endpoint(3, variant="canary")]
    assert only(pool(endpoints=replicas))[0] == "pools[0].endpoints[1].id"


def test_an_endpoint_names_a_variant_that_exists() -> None:
    """The message names the existing variants."""
    replicas = [endpoint(1), endpoint(2, variant="canary"), endpoint(3, variant="cannary")]
    path, message = only(pool(endpoints=replicas))
    assert path == "pools[0].endpoints[2].variant"
    assert "it has stable, canary" in message


def test_an_endpoint_can_be_connected_to() -> None:
    """A wildcard address names no host."""
    replicas = [endpoint(1, http="0.0.0.0:80"), endpoint(3, variant="canary")]
    assert only(pool(endpoints=replicas))[0] == "pools[0].endpoints[0].http"


@pytest.mark.parametrize("field", ["http", "grpc", "metrics"])
def test_a_replica_is_the_same_in_each_pool(field: str) -> None:
    """One id is one replica, wherever it is listed."""
    changed = "http://127.0.0.1:1/metrics" if field == "metrics" else "127.0.0.1:1"
    again = pool("b", variants=[{"name": "stable"}], endpoints=[endpoint(1, **{field: changed})])
    path, message = only(pool(default=True), again)
    assert path == f"pools[1].endpoints[0].{field}"
    assert "pools[0].endpoints[0]" in message


def test_a_replica_may_serve_several_pools() -> None:
    """The same id with the same addresses is one replica with two models."""
    again = pool("b", variants=[{"name": "stable"}], endpoints=[endpoint(1)])
    assert found(pool(default=True), again) == []


@pytest.mark.parametrize("field", ["http", "grpc", "metrics"])
def test_two_replicas_share_no_address(field: str) -> None:
    """Otherwise the replica at the address would be ambiguous."""
    twin = endpoint(4, variant="canary") | {field: endpoint(1)[field]}
    path, message = only(pool(endpoints=[endpoint(1), twin]))
    assert path == f"pools[0].endpoints[1].{field}"
    assert "'r1'" in message


def test_pools_with_grpc_need_one_default() -> None:
    """The message names the pools and the correction."""
    path, message = only(pool(), other("b", 5))
    assert path == "pools[0].default"
    assert "pools llm, b have gRPC replicas" in message
    assert "`default: true`" in message


def test_a_form_has_no_two_defaults() -> None:
    """Envoy has one catch-all for each form."""
    assert only(pool(default=True), other("b", 5, default=True))[0] == "pools[1].default"


def test_pools_that_share_a_path_need_one_default() -> None:
    """Pools without gRPC replicas may still share an OpenAI path."""
    pools = [
        pool(
            name,
            match={"models": [name], "paths": [CHAT]},
            variants=[{"name": "stable"}],
            endpoints=[{"http": f"127.0.0.1:{port}"}],
        )
        for name, port in (("a", 1), ("b", 2))
    ]
    assert CHAT in only(*pools)[1]
    pools[1]["default"] = True
    assert found(*pools) == []
    assert defaults_of(fleet(*pools)).paths.get(CHAT) == "b"


def test_without_a_replica_there_is_no_default() -> None:
    """A form that no replica serves has no default."""
    empty = fleet(pool(endpoints=[], match={"paths": [CHAT]}))
    assert defaults_of(empty).grpc is None
    assert defaults_of(empty).paths.get(CHAT) is None


def test_the_default_for_http_needs_no_mark_and_may_be_missing() -> None:
    """Only proxies that the control server did not configure send requests that need it."""
    assert defaults_of(fleet(pool())).http == "llm"
    assert defaults_of(fleet(pool(), other("b", 5))).http is None
    assert defaults_of(fleet(pool(), other("b", 5, default=True))).http == "b"


def test_pickers_are_unique() -> None:
    """A repeated picker would get twice the streams."""
    assert only(pickers={"addresses": ["127.0.0.1:1", "127.0.0.1:1"]})[0] == "pickers.addresses[1]"


def test_without_pickers_requests_may_not_depend_on_them() -> None:
    """With `fail_open: false` and no picker every request would fail."""
    assert only(pickers={"addresses": [], "fail_open": False})[0] == "pickers.addresses"
    assert found(pickers={"addresses": []}) == []


@pytest.mark.parametrize("listener", ["127.0.0.1:18001", "0.0.0.0:18001"])
def test_a_picker_is_not_the_listener(listener: str) -> None:
    """Envoy would call itself as a picker."""
    assert only(listener={"address": listener})[0] == "pickers.addresses[0]"


def test_a_picker_can_be_connected_to() -> None:
    """A wildcard address names no host."""
    assert only(pickers={"addresses": ["0.0.0.0:1"]})[0] == "pickers.addresses[0]"


def test_a_replica_is_not_the_listener() -> None:
    """Requests would loop."""
    assert "loop" in only(listener={"address": "127.0.0.1:8011"})[1]


def test_a_replica_is_not_a_picker() -> None:
    """An address has one owner."""
    assert "a picker's" in only(pickers={"addresses": ["127.0.0.1:8011"]})[1]


def test_problems_come_in_the_order_of_the_file() -> None:
    """Positions are numbers, so the tenth pool comes after the second."""
    pools = [
        other(f"p{n}", n, match={"models": [f"m{n}"] * 2}, default=n == 1) for n in range(1, 13)
    ]
    told = [path for path, _ in found(*pools)]
    assert told == [f"pools[{n}].match.models[1]" for n in range(12)]


@pytest.mark.parametrize(
    "example",
    sorted(Path(__file__).parents[5].joinpath("docs/examples").glob("*.yaml")),
    ids=lambda path: path.name,
)
def test_examples_hold(example: Path) -> None:
    """Every example of the documentation can be used as it is."""
    assert load_text(example.read_text(), example.name).pools
