"""Web pages of other origins, and compressed answers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from envoy.config.core.v3 import extension_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.http.compressor.v3 import compressor_pb2
from envoy.extensions.filters.http.cors.v3 import cors_pb2

from support.fleets import fleet
from tidegate_api.names import CORS_FILTER, STRIPPED_HEADERS
from xds_server.resources.edge.filters import first_filters
from xds_server.resources.filters.discovered import extensions
from xds_server.resources.routes.table import route_configuration


def policy(**cors: Any) -> Any:
    """Return the policy of all routes."""
    data = route_configuration(fleet(listener={"cors": cors}))
    (host,) = route_pb2.RouteConfiguration.FromString(data).virtual_hosts
    made = cors_pb2.CorsPolicy()
    assert host.typed_per_filter_config[CORS_FILTER].Unpack(made)
    return made


@pytest.mark.parametrize(
    ("origin", "taken", "refused"),
    [
        (
            "https://a.example",
            ["https://a.example"],
            ["https://a.example.evil", "http://a.example"],
        ),
        (
            "https://*.a.example",
            ["https://x.a.example", "https://x.y.a.example"],
            ["https://a.example", "https://evil/.a.example", "https://x.axexample"],
        ),
        ("*", ["https://any.example", "null"], []),
    ],
)
def test_origins_match_as_a_whole(origin: str, taken: list[str], refused: list[str]) -> None:
    """A star stands for parts of a host name, and for nothing else."""
    (matcher,) = policy(origins=[origin]).allow_origin_string_match

    def matches(value: str) -> bool:
        regex = matcher.safe_regex.regex or re.escape(matcher.exact)
        return re.fullmatch(regex, value) is not None

    assert [matches(each) for each in taken] == [True] * len(taken)
    assert [matches(each) for each in refused] == [False] * len(refused)


def test_cookies_and_other_headers_are_asked_for() -> None:
    """What is not written is not allowed."""
    made = policy(origins=["https://a.example"])
    assert (made.allow_methods, made.expose_headers) == ("GET, POST", "")
    assert made.allow_headers == "authorization, content-type"
    assert not made.allow_credentials.value
    # A preflight of another origin reaches no route.
    assert not made.forward_not_matching_preflights.value


def test_a_preflight_question_is_not_forwarded() -> None:
    """It needs a route that would forward; the header with its cluster is stripped from clients."""
    data = route_configuration(fleet(listener={"cors": {"origins": ["*"]}}))
    first, *others = route_pb2.RouteConfiguration.FromString(data).virtual_hosts[0].routes
    asked = [each.name for each in first.match.headers]
    assert asked == [":method", "origin", "access-control-request-method"]
    assert first.route.cluster_header in STRIPPED_HEADERS
    assert not any(each.route.cluster_header for each in others)
    without = route_pb2.RouteConfiguration.FromString(route_configuration(fleet()))
    assert others == list(without.virtual_hosts[0].routes)


def test_all_that_is_refused_can_be_read_by_a_page() -> None:
    """The filters stand first: answers of those behind them pass them."""
    of = fleet(listener={"cors": {"origins": ["*"]}, "compression": {}})
    for each in (of, fleet()):
        found = first_filters(each.listener)
        assert [one.name for one in found] == ["tidegate.compress.gzip", "tidegate.cors"]
        assert all(one.disabled for one in found)


def test_answers_are_compressed_by_the_first_algorithm_that_a_client_takes() -> None:
    """Only those that are asked for, of the media types that are named."""
    of = fleet(listener={"compression": {"algorithms": ["zstd", "gzip", "zstd"]}})
    made = {}
    for name, data in extensions(of).items():
        config = compressor_pb2.Compressor()
        if extension_pb2.TypedExtensionConfig.FromString(data).typed_config.Unpack(config):
            made[name] = config
    assert sorted(made) == ["tidegate.compress.gzip", "tidegate.compress.zstd"]
    assert [made[name].choose_first for name in sorted(made)] == [False, True]
    routes = route_pb2.RouteConfiguration.FromString(route_configuration(of))
    assert sorted(routes.typed_per_filter_config) == sorted(made)
    common = made["tidegate.compress.zstd"].response_direction_config.common_config
    assert list(common.content_type) == ["application/json"]
    assert common.min_content_length.value == 1024
    assert common.enabled.default_value.value
