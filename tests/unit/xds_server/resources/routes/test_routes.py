"""Routes: the order in which they match, and their actions."""

from __future__ import annotations

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2, processing_mode_pb2

from support.envoy_messages import first_match, read_routes
from support.fleets import endpoint, fleet, pool
from tidegate_api.names import STRIPPED_HEADERS
from tidegate_api.pools import MAX_REPEATS
from xds_server.resources.routes.table import route_configuration

MODE = processing_mode_pb2.ProcessingMode


def processing(route):
    """Return the route's settings of the picker."""
    settings = ext_proc_pb2.ExtProcPerRoute()
    route.typed_per_filter_config["envoy.filters.http.ext_proc"].Unpack(settings)
    return settings


def first(data: bytes, path: str, method: str = "POST", **headers: str) -> str:
    """Return the name of the route that a request matches."""
    return first_match(read_routes(data).values(), path, method, **headers).name


MODELS = "/v2/models/llm-model"
INFER = MODELS + "/infer"
GRPC = "/inference.GRPCInferenceService/"


def test_every_route_has_a_name_of_its_own() -> None:
    """Names identify routes in logs and in the picker."""
    data = route_configuration(fleet(pool("a", default=True), pool("b", endpoints=[endpoint(4)])))
    config = route_pb2.RouteConfiguration.FromString(data)
    names = [route.name for route in config.virtual_hosts[0].routes]
    assert len(set(names)) == len(names)


def test_without_a_pick_a_request_goes_on_in_another_priority() -> None:
    """There its cluster has breakers of its own; streams, and what asks no picker, stay."""
    made = read_routes(route_configuration(fleet(pool())))
    apart = {name: route for name, route in made.items() if route.match.filter_state}
    assert set(apart) == {
        f"without-pick/llm/{variant}/{protocol}"
        for variant in ("stable", "canary")
        for protocol in ("http", "grpc")
    }
    for name, route in made.items():
        assert (route.route.priority == base_pb2.HIGH) == (name in apart)
    for name, route in apart.items():
        (state,) = route.match.filter_state
        assert name == f"without-pick/{state.string_match.exact}"
        assert route.route.cluster == state.string_match.exact
    bounded = {name for name, r in made.items() if state.key in r.typed_per_filter_config}
    assert "llm/http" in bounded
    assert not {name for name in bounded if "stream" in name or name.startswith("server/")}


def test_a_path_with_the_model_draws_the_variant_by_weight() -> None:
    """A path names the pool, and its weights are the canary split."""
    data = route_configuration(fleet())
    route = read_routes(data)[first(data, MODELS + "/infer")]
    weights = {entry.name: entry.weight.value for entry in route.route.weighted_clusters.clusters}
    assert weights == {"llm/stable/http": 90, "llm/canary/http": 10}
    assert route.route.weighted_clusters.use_hash_policy.value
    assert route.route.hash_policy[0].header.header_name == "x-session-id"


def test_a_version_in_the_path_comes_before_the_weights() -> None:
    """A request that names version 2 goes to the variant that serves it, whatever the weights."""
    data = route_configuration(fleet())
    route = read_routes(data)[first(data, MODELS + "/versions/2/infer")]
    assert route.route.cluster == "llm/canary/http"


def test_names_of_models_are_matched_whole() -> None:
    """They are escaped in patterns, and another may begin alike."""
    data = route_configuration(fleet(pool(match={"models": ["m.1"]})))
    found = [first(data, f"/v2/models/{name}/infer") for name in ("m.1", "mx1", "m.1-large")]
    assert found == ["llm/http", "unknown-model", "unknown-model"]


@pytest.mark.parametrize(
    ("match", "pinned", "other"),
    [
        ({"headers": {"x-ab": "b"}}, {"x_ab": "b"}, {"x_ab": "a"}),
        ({"cookies": {"ab": "b"}}, {"cookie": "id=1; ab=b"}, {"cookie": "id=1; ab=c"}),
    ],
)
def test_a_pinned_variant_comes_before_the_weights(match, pinned, other) -> None:
    """Headers and cookies of an A/B match select their variant, whatever the weights."""
    variants = [{"name": "stable"}, {"name": "canary", "weight": 0, "match": match}]
    data = route_configuration(fleet(pool(variants=variants)))
    assert read_routes(data)[first(data, INFER, **pinned)].route.cluster == "llm/canary/http"
    split = read_routes(data)[first(data, INFER, **other)].route.weighted_clusters.clusters
    weights = {one.name: one.weight.value for one in split}
    assert weights == {"llm/stable/http": 1, "llm/canary/http": 0}


def test_a_header_names_the_pool_of_a_stream() -> None:
    """tidegate-pool and tidegate-model route a stream, whose body is never read."""
    data = route_configuration(
        fleet(
            pool("a", default=True),
            pool("b", endpoints=[endpoint(4), endpoint(5)]),
            listener={"client_headers": ["tidegate-pool", "tidegate-model"]},
        )
    )
    assert first(data, GRPC + "ModelStreamInfer", tidegate_pool="b") == "b/grpc-stream/by-pool"
    assert first(data, GRPC + "ModelStreamInfer", tidegate_model="b-model") == (
        "b/grpc-stream/by-model"
    )
    assert first(data, GRPC + "ModelStreamInfer") == "a/grpc-stream/default"


def test_only_the_body_names_the_pool_of_a_grpc_call() -> None:
    """ModelInfer without headers goes to the picker on an unnamed route to the default pool."""
    data = route_configuration(
        fleet(pool("a"), pool("b", default=True, endpoints=[endpoint(4), endpoint(5)]))
    )
    name = first(data, GRPC + "ModelInfer")
    assert name == "unnamed/grpc"
    clusters = read_routes(data)[name].route.weighted_clusters.clusters
    assert [entry.name for entry in clusters] == ["b/stable/grpc", "b/canary/grpc"]


def test_retiring_variants_stay_pickable() -> None:
    """A picker with the previous fleet may still name variants that the new one removed."""
    one = pool(variants=[{"name": "stable"}], endpoints=[endpoint(1), endpoint(2)])
    data = route_configuration(fleet(one), retiring=fleet())
    chosen = {"x_tidegate_pool": "llm", "x_tidegate_variant": "canary"}
    assert first(data, GRPC + "ModelInfer", **chosen) == "picked/llm/canary/grpc"
    assert first(data, INFER) == "llm/http"


def test_calls_to_one_replica_are_rejected() -> None:
    """Through a load balancer a model would be loaded on an arbitrary replica."""
    data = route_configuration(fleet())
    for path in ("/v2/repository/models/m/load", "/v2/logging", GRPC + "RepositoryModelLoad"):
        assert read_routes(data)[first(data, path)].direct_response.status == 403


def test_a_pool_may_read_the_first_message_of_streams() -> None:
    """``first_message: duplex``: the picker chooses the pool, and every message goes through it."""
    data = route_configuration(
        fleet(
            pool("a", default=True, routing={"first_message": "duplex"}),
            pool("b", endpoints=[endpoint(4)]),
        )
    )
    assert first(data, GRPC + "ModelStreamInfer") == "unnamed/grpc-stream"
    named = first(data, GRPC + "ModelStreamInfer", tidegate_model="a-model")
    for name in ("unnamed/grpc-stream", named):
        mode = processing(read_routes(data)[name]).overrides.processing_mode
        assert mode.request_body_mode == MODE.FULL_DUPLEX_STREAMED
        assert (mode.request_trailer_mode, mode.response_trailer_mode) == (MODE.SEND, MODE.SKIP)
    other = read_routes(data)[first(data, GRPC + "ModelStreamInfer", tidegate_model="b-model")]
    assert processing(other).overrides.processing_mode.request_body_mode == MODE.NONE


def test_streams_are_never_collected() -> None:
    """A buffered ModelStreamInfer would hang, so its routes read no body in any mode."""
    for body in ("none", "peek", "full"):
        data = route_configuration(fleet(pool(routing={"body": body})))
        for name, route in read_routes(data).items():
            if "stream" in name:
                mode = processing(route).overrides.processing_mode
                assert mode.request_body_mode == MODE.NONE
                assert "reset" not in route.route.retry_policy.retry_on.split(",")


def test_full_collects_the_body_up_to_its_bound() -> None:
    """In full mode Envoy collects the whole body, and the bound is the route's."""
    data = route_configuration(fleet(pool(routing={"body": "full", "max_body": 5000})))
    route = read_routes(data)["llm/http"]
    assert processing(route).overrides.processing_mode.request_body_mode == MODE.BUFFERED
    assert route.request_body_buffer_limit.value == 5000


def test_an_unnamed_route_reads_the_body_even_of_a_pool_that_reads_none() -> None:
    """Before the pool is known its setting cannot apply; the limit is that of peek."""
    data = route_configuration(fleet(pool(routing={"body": "none", "peek_bytes": 8192})))
    assert read_routes(data)["unnamed/grpc"].request_body_buffer_limit.value == 8192
    assert read_routes(data)["llm/http"].request_body_buffer_limit.value == 1024 * 1024


def test_a_path_of_several_pools_is_read_in_full() -> None:
    """The model that selects the pool may be at the end of the body."""
    match = {"models": ["m"], "paths": ["/v1/completions"]}
    one = pool("a", match=match, default=True)
    two = pool("b", endpoints=[endpoint(4)], match={**match, "models": ["n"]})
    alone = read_routes(route_configuration(fleet(one)))["unnamed/v1/completions"]
    shared = read_routes(route_configuration(fleet(one, two)))["unnamed/v1/completions"]
    assert processing(alone).overrides.processing_mode.request_body_mode == MODE.NONE
    assert processing(shared).overrides.processing_mode.request_body_mode == MODE.BUFFERED
    assert shared.request_body_buffer_limit.value == 4 * 2**20


def test_every_picked_route_keeps_the_stream_open_to_the_end() -> None:
    """Where no body is read, response trailers are sent: nothing else does."""
    found = set()
    for body in ("none", "peek", "full"):
        data = route_configuration(fleet(pool("a", default=True, routing={"body": body})))
        for route in read_routes(data).values():
            settings = processing(route)
            if not settings.disabled:
                mode = settings.overrides.processing_mode
                found.add((mode.request_body_mode, mode.response_trailer_mode))
    assert found == {(MODE.NONE, MODE.SEND), (MODE.BUFFERED, MODE.SKIP)}


def test_retries_follow_the_list() -> None:
    """A constant number of retries, as the picker's list varies; never to a tried host."""
    data = route_configuration(fleet(pool(routing={"fallbacks": 3})))
    retry = read_routes(data)["llm/http"].route.retry_policy
    assert retry.num_retries.value == MAX_REPEATS
    assert retry.host_selection_retry_max_attempts >= 4
    assert retry.retry_host_predicate[0].name == "envoy.retry_host_predicates.previous_hosts"
    assert "reset" in retry.retry_on.split(",")


def test_a_404_is_repeated_only_where_a_header_asks_for_it() -> None:
    """The route names the answers, but not the condition; clients cannot send that header."""
    retry = read_routes(route_configuration(fleet()))["llm/http"].route.retry_policy
    named = [(each.name, each.string_match.exact) for each in retry.retriable_headers]
    assert named == [(":status", "404"), ("grpc-status", "5")]
    assert "retriable-headers" not in retry.retry_on
    assert "x-envoy-retry-on" in STRIPPED_HEADERS
    off = read_routes(route_configuration(fleet(pool(health={"repository": False}))))
    assert not off["llm/http"].route.retry_policy.retriable_headers


def test_no_route_retries_a_request_whose_end_is_not_known() -> None:
    """Every retry policy holds only for requests with the mark, which clients cannot set."""
    duplex = pool(default=True, routing={"first_message": "duplex"})
    routes = read_routes(
        route_configuration(
            fleet(duplex, gateway={"http": ["127.0.0.1:9000"], "grpc": ["127.0.0.1:9001"]})
        )
    )
    retried = [each.route.retry_policy for each in routes.values() if each.HasField("route")]
    assert len(retried) > 10
    for retry in retried:
        (gate,) = retry.retriable_request_headers
        assert (gate.name, gate.string_match.exact) == ("x-tidegate-repeatable", "1")
    assert "x-tidegate-repeatable" in STRIPPED_HEADERS


def test_reads_are_bounded_except_on_streams() -> None:
    """A stream is not retried once it may have been read, so it needs no count."""
    routes = read_routes(route_configuration(fleet(pool(default=True, routing={"retry_read": 0}))))
    script = routes["llm/http"].metadata.filter_metadata["envoy.filters.http.lua"]
    assert script.fields["retry_read"].number_value == 0.0
    streams = [
        route
        for route in routes.values()
        if route.HasField("route") and route.route.retry_policy.retry_on.count(",") == 1
    ]
    assert streams
    assert not any(route.HasField("metadata") for route in streams)


def test_the_bound_on_headers_is_the_pools_own_except_on_streams() -> None:
    """A gRPC stream may wait for its client's next message for as long as it likes."""
    made = fleet(pool(default=True, timeouts={"first_answer": "7s"}))
    bounds = {
        route.route.retry_policy.retry_on.count(",") == 1: (
            route.route.retry_policy.per_try_timeout.seconds
        )
        for route in read_routes(route_configuration(made)).values()
        if route.route.HasField("retry_policy")
    }
    assert bounds == {True: 0, False: 7}


def test_a_pool_without_http_has_no_http_routes() -> None:
    """No route leads to a cluster that does not exist."""
    grpc_only = [{"id": "g", "grpc": "127.0.0.1:8001"}]
    data = route_configuration(fleet(pool(endpoints=grpc_only)))
    assert first(data, INFER) == "unknown-model"
    assert "server/v2" not in read_routes(data)


def test_the_served_replica_is_shown_only_if_enabled() -> None:
    """By default clients do not see addresses of replicas."""
    quiet = route_pb2.RouteConfiguration.FromString(route_configuration(fleet()))
    loud = route_pb2.RouteConfiguration.FromString(
        route_configuration(fleet(listener={"debug_headers": True}))
    )
    assert not quiet.response_headers_to_add
    assert loud.response_headers_to_add[0].header.value == "%UPSTREAM_HOST%"


SHADOWED = pool(
    default=True,
    variants=[{"name": "stable"}, {"name": "canary", "weight": 0, "model_version": "2"}],
    shadow={"variant": "canary", "percent": 12.5},
)


def mirrors(route) -> dict[str, int]:
    """Return the cluster to which a route sends copies, and how many in a million."""
    return {
        policy.cluster: policy.runtime_fraction.default_value.numerator
        for policy in route.route.request_mirror_policies
    }


def test_a_shadow_is_sent_copies() -> None:
    """Copies go to the shadow's cluster of the same protocol, drawn or picked."""
    data = route_configuration(fleet(SHADOWED))
    routes = read_routes(data)
    assert mirrors(routes[first(data, MODELS + "/infer")]) == {"llm/canary/http": 125_000}
    assert mirrors(routes["picked/llm/stable/grpc"]) == {"llm/canary/grpc": 125_000}


def test_some_requests_are_never_copied() -> None:
    """Streams, calls about the server, and requests to the shadow variant itself."""
    data = route_configuration(fleet(SHADOWED))
    routes = read_routes(data)
    assert mirrors(routes[first(data, GRPC + "ModelStreamInfer", tidegate_model="llm-model")]) == {}
    assert mirrors(routes[first(data, "/v2/health/ready", "GET")]) == {}
    assert mirrors(routes[first(data, MODELS + "/versions/2/infer")]) == {}
    assert mirrors(routes["picked/llm/canary/http"]) == {}


def test_what_a_host_lacks_is_found_out_before_a_request_goes_on() -> None:
    """Pickers know all pools, or an earlier fleet; a body may come after its head.

    Envoy 1.40 ends where the route is cleared after that and no other one forwards.
    """
    listener = {"hosts": [{"names": ["a.example"], "pools": ["llm"]}]}
    data = route_configuration(fleet(pool(default=True), listener=listener))
    host = route_pb2.RouteConfiguration.FromString(data).virtual_hosts[0]
    forwarding = [each for each in host.routes if each.HasField("route")]
    left = [
        each.name for each in forwarding if "tidegate.picked" not in each.typed_per_filter_config
    ]
    assert all(name.startswith("picked/") for name in left), left
    assert len(forwarding) > len(left)
