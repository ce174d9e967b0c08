"""What builds of Envoy before a version refuse, and what is lost where it is left out. Pure.

An Envoy refuses an extension that it lacks. A field that it lacks it ignores or, if it was started
with ``--reject-unknown-dynamic-fields``, refuses. Found with ``envoy --mode validate`` of 1.36.4,
1.37.0, 1.38.3, 1.39.3 and 1.40.0 (``tests/soak/test_older_envoys.py`` repeats it).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate_api.names import CLUSTER_TYPE, LISTENER_TYPE
from xds_server.builds.edit import Drop, Into

Build = tuple[int, int, int]
"""Major, minor and patch number of an Envoy."""

OLDEST: Final[Build] = (1, 36, 0)
"""The oldest build that was tried; older ones are served as this one is."""


class Feature(NamedTuple):
    """A part of a resource that older builds lack."""

    since: Build
    """The first build that has it."""
    lost: str
    """What does not work without it, for operators."""
    type_url: str
    """Type of the resources that contain it."""
    path: tuple[Into, ...]
    drop: Drop


_HTTP = "envoy.extensions.filters.http"
_MANAGER: Final = (
    Into(3),  # Listener.filter_chains
    Into(3),  # FilterChain.filters
    Into(
        4,  # Filter.typed_config
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
    ),
)
_FILTER: Final = (*_MANAGER, Into(5))
"""Into ``HttpConnectionManager.http_filters``."""

FEATURES: Final = (
    Feature(
        (1, 37, 0),
        "routing.retry_read: a request may be read by as many replicas as it has retries",
        LISTENER_TYPE,
        (*_FILTER, Into(4, f"{_HTTP}.router.v3.Router")),
        # Router.upstream_http_filters: its filter is an ExecuteFilterAction with a filter_chain.
        Drop(frozenset({8}), "tidegate.reads"),
    ),
    Feature(
        (1, 37, 0),
        "routing.retry_read, at variants with model_version as at all others",
        CLUSTER_TYPE,
        (
            Into(36),  # Cluster.typed_extension_protocol_options
            Into(2, "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"),
        ),
        # HttpProtocolOptions.http_filters
        Drop(frozenset({6}), "tidegate.reads"),
    ),
    Feature(
        (1, 37, 0),
        "an answer begins with its headers, not with its body, where pickers learn times",
        LISTENER_TYPE,
        (
            *_MANAGER,
            Into(13),  # HttpConnectionManager.access_log
            Into(4, "envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig"),
            Into(1),  # HttpGrpcAccessLogConfig.common_config
        ),
        Drop(frozenset({8})),  # custom_tags
    ),
    Feature(
        (1, 38, 0),
        "telemetry.usage: tokens of streamed answers are not counted",
        LISTENER_TYPE,
        _MANAGER,
        # HttpConnectionManager.http_filters
        Drop(frozenset({5}), "tidegate.usage"),
    ),
    Feature(
        (1, 38, 0),
        "a request whose body the picker read in part may stay on the route of another pool; what"
        " waited in a picker that dies goes on at once",
        LISTENER_TYPE,
        (
            *_FILTER,
            Into(4, "envoy.extensions.common.matching.v3.ExtensionWithMatcher"),
            Into(2),  # ExtensionWithMatcher.extension_config
            Into(2, f"{_HTTP}.set_filter_state.v3.Config"),
        ),
        Drop(frozenset({2})),  # clear_route_cache
    ),
    Feature(
        (1, 38, 0),
        "the picker is not told which of its picks served a request",
        CLUSTER_TYPE,
        (
            Into(41),  # Cluster.load_balancing_policy
            Into(1),  # LoadBalancingPolicy.policies
            Into(4),  # Policy.typed_extension_config
            Into(2, "envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost"),
        ),
        Drop(frozenset({2})),  # selected_host_key
    ),
    Feature(
        (1, 39, 0),
        "resets of HTTP/2 streams are not limited per connection",
        LISTENER_TYPE,
        (*_MANAGER, Into(9)),  # HttpConnectionManager.http2_protocol_options
        Drop(frozenset({21, 22})),  # stream_reset_burst, stream_reset_rate
    ),
)


def lacking(build: Build | None) -> tuple[Feature, ...]:
    """Return the features that a build lacks; none for a build that is not known."""
    return () if build is None else tuple(each for each in FEATURES if build < each.since)
