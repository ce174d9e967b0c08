"""Limits of the rate of requests."""

from __future__ import annotations

from typing import Any

from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.http.local_ratelimit.v3 import local_rate_limit_pb2

from support.envoy_messages import cluster_of, listener_of, read_routes
from support.fleets import endpoint, fleet, pool
from tidegate_api.names import LIMIT_FILTER, PICKER_FILTER, POOL_LIMIT_FILTER, parse_cluster
from xds_server.resources.edge.limits import MAX_CLIENTS
from xds_server.resources.routes.table import route_configuration

LIMITED = fleet(
    pool("a", default=True, rate_limit={"requests": 5, "per": "2s"}),
    pool("b", endpoints=[endpoint(9)], variants=[{"name": "stable"}]),
    listener={"rate_limit": {"requests": 10, "burst": 30}},
)


def settings(name: str) -> Any:
    """Return the settings of one of the filters on all routes."""
    made = local_rate_limit_pb2.LocalRateLimit()
    config = route_pb2.RouteConfiguration.FromString(route_configuration(LIMITED))
    assert config.typed_per_filter_config[name].Unpack(made)
    for share in (made.filter_enabled, made.filter_enforced):
        assert share.default_value.numerator == 100  # Envoy's own default is none
    return made


def test_all_requests_share_a_bucket() -> None:
    """As large as the burst, and filled at the rate."""
    bucket = settings(LIMIT_FILTER).token_bucket
    assert (bucket.max_tokens, bucket.tokens_per_fill.value) == (30, 10)
    assert bucket.fill_interval.ToMilliseconds() == 1000


def test_no_copy_of_a_filter_has_a_bucket_of_its_own() -> None:
    """There is one for HTTP/1 and one for HTTP/2 at least: they would count apart."""
    found = listener_of(fleet())[1][0].http_filters
    for each in (one for one in found if one.name in (LIMIT_FILTER, POOL_LIMIT_FILTER)):
        made = local_rate_limit_pb2.LocalRateLimit()
        assert each.typed_config.Unpack(made)
        assert [field.name for field, _ in made.ListFields()] == ["stat_prefix"]
        assert each.disabled
    assert not route_pb2.RouteConfiguration.FromString(
        route_configuration(fleet())
    ).typed_per_filter_config


def test_each_client_address_has_a_bucket() -> None:
    """Beside that of all requests, or alone; IPv6 addresses of one /64 are one client."""
    for together in ({"requests": 10}, None):
        limits = {"client_rate_limit": {"requests": 3, "burst": 7}, "rate_limit": together}
        made = local_rate_limit_pb2.LocalRateLimit()
        config = route_pb2.RouteConfiguration.FromString(
            route_configuration(fleet(listener=limits))
        )
        assert config.typed_per_filter_config[LIMIT_FILTER].Unpack(made)
        (one,) = made.descriptors
        assert [(each.key, each.value) for each in one.entries] == [("masked_remote_address", "")]
        assert (one.token_bucket.max_tokens, one.token_bucket.tokens_per_fill.value) == (7, 3)
        address = made.rate_limits[0].actions[0].masked_remote_address
        assert (address.v4_prefix_mask_len.value, address.v6_prefix_mask_len.value) == (32, 64)
        assert made.max_dynamic_descriptors.value == MAX_CLIENTS
        assert made.always_consume_default_token_bucket.value == (together is not None)
        assert made.token_bucket.max_tokens == (10 if together else 2**32 - 1)


def test_a_pool_has_a_bucket_whatever_the_route() -> None:
    """Not one for each of its routes; pools without a limit have none."""
    made = settings(POOL_LIMIT_FILTER)
    assert [[(e.key, e.value) for e in each.entries] for each in made.descriptors] == [
        [("pool", "a")]
    ]
    assert made.descriptors[0].token_bucket.max_tokens == 5
    assert not made.always_consume_default_token_bucket.value
    assert made.token_bucket.max_tokens == 2**32 - 1
    counted = set()
    for route in read_routes(route_configuration(LIMITED)).values():
        if route.HasField("route"):
            keys = [
                action.generic_key.descriptor_value
                for limit in route.route.rate_limits
                for action in limit.actions
            ]
            counted.add((parse_cluster(cluster_of(route)).pool, *keys))
    assert counted == {("a", "a"), ("b",)}


def test_the_pickers_are_not_asked_about_what_the_listener_refuses() -> None:
    """A pool's limit is counted where the pool is known."""
    order = [one.name for one in listener_of(LIMITED)[1][0].http_filters]
    found = [each for each in order if each in (LIMIT_FILTER, PICKER_FILTER, POOL_LIMIT_FILTER)]
    assert found == [LIMIT_FILTER, PICKER_FILTER, POOL_LIMIT_FILTER]
