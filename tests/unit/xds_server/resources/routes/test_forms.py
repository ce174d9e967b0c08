"""Routes by a model that Envoy read from a body."""

from __future__ import annotations

from typing import Any

import pytest

from support.envoy_messages import read_routes
from support.fleets import endpoint, fleet, pool
from tidegate_api.names import CONTROL_MODEL_HEADER, MODEL_HEADER
from xds_server.fleet.rules.bodies import FIRST_MESSAGE_BYTES
from xds_server.resources.routes.forms import READ_HEADERS
from xds_server.resources.routes.table import route_configuration

CHAT = "/v1/chat/completions"
EXT_PROC = "envoy.filters.http.ext_proc"


def two(*models: list[str], **more: Any) -> Any:
    """Return a fleet of two pools over separate replicas."""
    names = models or (["one"], ["two"])
    first = {"match": {"models": names[0], "paths": [CHAT]}}
    second = {"match": {"models": names[1], "paths": [CHAT]}}
    apart = [endpoint(4), endpoint(5, variant="canary")]
    return fleet(pool("a", default=True, **first), pool("b", endpoints=apart, **{**second, **more}))


def routes(made: Any) -> dict[str, Any]:
    """Return the routes of a fleet by name, in order."""
    return read_routes(route_configuration(made))


NONE = {"first_message": "none"}


@pytest.mark.parametrize(
    "made", [fleet(), fleet(pool("a", default=True, routing=NONE), pool("b", routing=NONE))]
)
def test_nothing_is_configured_where_any_replica_can_answer(made: Any) -> None:
    """One pool, or pools over the same replicas, have neither routes nor filters of this kind."""
    for name, route in routes(made).items():
        assert "by-body" not in name
        assert not name.startswith(("unserved/", "unpicked/"))
        enabled = set(route.typed_per_filter_config)
        assert not {name for name in enabled if name.startswith(("tidegate.b", "tidegate.w"))}


def test_a_stream_of_several_models_is_read_on_every_route_that_names_none() -> None:
    """Envoy reads plain ones, the picker compressed ones; a model without a pool is not refused."""
    headers = ["tidegate-pool", MODEL_HEADER]
    made = fleet(
        pool("a", match={"models": ["one", "two"]}),
        listener={"address": "127.0.0.1:10000", "client_headers": headers},
    )
    order = list(routes(made))
    assert "unserved/grpc-stream" not in order
    assert "a/by-body/grpc-stream" in order
    for name in ("a/grpc-stream/default", "a/grpc-stream/by-pool"):
        route = routes(made)[name]
        assert "tidegate.before.grpc" in route.typed_per_filter_config
        assert route.request_body_buffer_limit.value == FIRST_MESSAGE_BYTES
        assert set(route.request_headers_to_remove) >= {CONTROL_MODEL_HEADER, MODEL_HEADER}
    for name, plain in (
        ("unnamed/grpc-stream-compressed", "a/grpc-stream/default"),
        ("a/grpc-stream/by-pool-compressed", "a/grpc-stream/by-pool"),
    ):
        assert order.index(name) < order.index(plain)
        assert "tidegate.before.grpc" not in routes(made)[name].typed_per_filter_config
    assert (
        "tidegate.before.grpc" not in routes(made)["a/grpc-stream/by-model"].typed_per_filter_config
    )


def test_a_model_leads_to_its_pool_before_the_default() -> None:
    """The first match wins, and the route of the body's form matches every request of it."""
    order = list(routes(two()))
    for form in ("grpc", "grpc-stream", CHAT[1:]):
        of_form = [name for name in order if name.endswith(f"/{form}") and "picked/a" not in name]
        assert order.index(f"b/by-body/{form}") < order.index(f"unserved/{form}")
        assert of_form
    assert order.index("unserved/grpc") < order.index("unpicked/grpc") < order.index("unnamed/grpc")
    assert order.index("unserved/grpc-stream") < order.index("a/grpc-stream/default")


def test_replicas_do_not_get_the_headers_of_this() -> None:
    """They are Envoy's own."""
    route = routes(two())["b/by-body/grpc"]
    assert tuple(route.request_headers_to_remove) == READ_HEADERS


def test_a_request_without_a_pick_may_be_as_large_as_max_body() -> None:
    """Where `peek` keeps 64 KiB, Envoy alone needs the whole message."""
    made = two(routing={"max_body": 9 * 2**20})
    assert routes(made)["unnamed/grpc"].request_body_buffer_limit.value == 65_536
    assert routes(made)["unpicked/grpc"].request_body_buffer_limit.value == 9 * 2**20


def test_only_inferences_of_unknown_models_are_refused() -> None:
    """Of other calls about a model Triton's own error is the answer."""
    assert routes(two())["unserved/grpc"].match.path.endswith("/ModelInfer")
    assert routes(two())["unserved/grpc"].direct_response.status == 404


def test_a_pool_without_models_takes_what_no_other_has() -> None:
    """Also without a picker; the others' models and adapters come before."""
    order = list(routes(two(["one"], [])))
    form = CHAT[1:]
    other = order.index(f"b/by-body/{form}/any-model")
    assert order.index(f"a/by-body/{form}") < other
    assert order.index(f"a/by-body/{form}/adapters-0") < other
    assert f"unserved/{form}" not in order


def test_an_adapter_goes_to_the_longest_base() -> None:
    """As the picker decides: `base:adapter` is `base` where no pool serves the whole name."""
    made = two(["m"], ["m:large"])
    order = list(routes(made))
    deep = order.index(f"b/by-body/{CHAT[1:]}/adapters-1")
    assert deep < order.index(f"a/by-body/{CHAT[1:]}/adapters-0")
    headers = routes(made)[order[deep]].match.headers
    (matcher,) = [one for one in headers if one.name == CONTROL_MODEL_HEADER]
    assert matcher.string_match.safe_regex.regex == "(m:large)[:/#@|+]+.+"
    assert not [name for name in order if "by-body/grpc/adapters" in name]


@pytest.mark.parametrize(
    ("path", "named_there"),
    [("/v1/messages", True), ("/v1/responses", True), ("/rerank", True), ("/generate", False)],
)
def test_adapters_are_known_where_the_body_names_the_model(path: str, *, named_there: bool) -> None:
    """Without a picker too; SGLang's own requests name none."""
    match = [{"models": [model], "paths": [path]} for model in ("a", "b")]
    made = fleet(
        pool("a", default=True, match=match[0]),
        pool("b", endpoints=[endpoint(4)], match=match[1]),
    )
    assert (f"a/by-body/{path[1:]}/adapters-0" in list(routes(made))) is named_there


def test_a_pool_of_envoys_has_no_picker_on_any_route_of_its_own() -> None:
    """`policy: envoy` costs what Envoy costs; only unnamed requests of both pools may ask."""
    made = two(routing={"policy": "envoy"})
    for name, route in routes(made).items():
        if name.startswith("b/"):
            assert b"\x08\x01" in route.typed_per_filter_config[EXT_PROC].value, name
    assert "tidegate.before.grpc" in routes(made)["unnamed/grpc"].typed_per_filter_config


def test_a_pool_of_envoys_alone_has_no_picker_at_all() -> None:
    """Then its unnamed requests need none either."""
    alone = fleet(pool(default=True, routing={"policy": "envoy"}))
    for name, route in routes(alone).items():
        assert b"\x08\x01" in route.typed_per_filter_config[EXT_PROC].value, name
