"""Bounds and signs of life of connections, and the PROXY protocol."""

from __future__ import annotations

from typing import Any

from envoy.config.cluster.v3 import cluster_pb2
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
)

from support.envoy_messages import listener_of
from support.fleets import fleet, pool
from tidegate_api.names import CLUSTER_TYPE
from xds_server.snapshots.build import upstream_resources


def built(**settings: Any) -> Any:
    """Return a listener."""
    return listener_of(fleet(listener=settings))[0]


def manager(**settings: Any) -> Any:
    """Return the HTTP connection manager of a listener."""
    return listener_of(fleet(listener=settings))[1][0]


def test_nothing_is_on_unless_it_is_asked_for() -> None:
    """A listener of the usual settings has none of these fields."""
    message, made = built(), manager()
    assert len(message.socket_options) == 0
    assert [one.name for one in message.listener_filters] == [
        "envoy.filters.listener.http_inspector"
    ]
    common = made.common_http_protocol_options
    assert [each.name for each, _ in common.ListFields()] == ["max_headers_count"]
    assert not made.http2_protocol_options.HasField("connection_keepalive")


def test_the_address_in_a_proxy_header_is_read_first_and_required() -> None:
    """A connection that does not say whose it is is not let through after a while."""
    message = built(proxy_protocol=True)
    names = [one.name.rpartition(".")[2] for one in message.listener_filters]
    assert names == ["proxy_protocol", "http_inspector"]
    assert not message.continue_on_listener_filters_timeout
    assert built().continue_on_listener_filters_timeout


def test_connections_end_between_requests() -> None:
    """By age, by requests, and when idle; HTTP/1 is told by a header, so no answer is cut."""
    made = manager(connections={"max_duration": "5m", "max_requests": 9, "idle": "7s"})
    common = made.common_http_protocol_options
    assert common.max_connection_duration.seconds == 300
    assert common.max_requests_per_connection.value == 9
    assert common.idle_timeout.seconds == 7
    # A field that xds-protos does not know.
    assert HttpConnectionManager.parse(made.SerializeToString()).http1_safe_max_connection_duration


def test_silent_clients_are_probed() -> None:
    """By TCP, and by HTTP/2 through proxies that keep TCP alive themselves."""
    keepalive = {"tcp_keepalive": "30s", "h2_keepalive": "20s", "h2_keepalive_timeout": "3s"}
    options = built(connections=keepalive).socket_options
    assert [(one.level, one.name, one.int_value) for one in options] == [
        (1, 9, 1),
        (6, 4, 30),
        (6, 5, 10),
        (6, 6, 5),
    ]
    pings = manager(connections=keepalive).http2_protocol_options.connection_keepalive
    assert (pings.interval.seconds, pings.timeout.seconds) == (20, 3)


def test_connections_to_replicas_have_the_same_bounds() -> None:
    """Pings go to gRPC ports only, as HTTP ports speak HTTP/1."""
    of = fleet(pool(connections={"max_duration": "1h", "max_requests": 5, "h2_keepalive": "60s"}))
    found = {}
    for name, data in upstream_resources(of)[CLUSTER_TYPE].items():
        options = http_protocol_options_pb2.HttpProtocolOptions()
        packed = cluster_pb2.Cluster.FromString(data).typed_extension_protocol_options
        next(iter(packed.values())).Unpack(options)
        common, h2 = options.common_http_protocol_options, options.explicit_http_config
        found[name] = (
            common.max_connection_duration.seconds,
            common.max_requests_per_connection.value,
            h2.http2_protocol_options.connection_keepalive.interval.seconds,
        )
    assert found["llm/stable/http"] == (3600, 5, 0)
    assert found["llm/stable/grpc"] == (3600, 5, 60)
    assert found["tidegate-picker"] == (0, 0, 0)
