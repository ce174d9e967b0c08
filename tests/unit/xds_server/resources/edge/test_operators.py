"""Operators' own filters and patches in Envoy's resources."""

from __future__ import annotations

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2
from envoy_data_plane.envoy.config.core.v3 import Http2ProtocolOptions

from support.envoy_messages import cluster_of, listener_of, read_routes
from support.fleets import endpoint, fleet, pool
from tidegate_api.names import CLUSTER_TYPE, LIMIT_FILTER, PICKER_FILTER, parse_cluster
from xds_server.resources.filters.discovered import extensions
from xds_server.resources.routes.table import route_configuration
from xds_server.snapshots.build import upstream_resources

RBAC = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"
MANAGER = (
    "type.googleapis.com/envoy.extensions.filters.network"
    ".http_connection_manager.v3.HttpConnectionManager"
)
LISTENER = "type.googleapis.com/envoy.config.listener.v3.Listener"
CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
OPTIONS = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

OWN = fleet(
    pool("a", default=True),
    pool(
        "b",
        endpoints=[endpoint(7), endpoint(8, variant="canary")],
        http_filters={"rules": {"@type": RBAC + "PerRoute"}},
    ),
    listener={
        "http_filters": {
            "before": [{"name": "first", "config": {"@type": RBAC, "rules_stat_prefix": "x"}}],
            "after": [{"name": "rules", "config": {"@type": RBAC}}],
        }
    },
)


def test_filters_stand_where_they_were_asked_for() -> None:
    """Before: once headers are stripped; after: behind all that choose the route."""
    names = [one.name for one in listener_of(OWN)[1][0].http_filters]
    assert names[names.index("tidegate.strip") :][:3] == ["tidegate.strip", LIMIT_FILTER, "first"]
    assert names[-3:] == ["rules", "tidegate.usage", "envoy.filters.http.router"]
    assert names.index("first") < names.index(PICKER_FILTER) < names.index("rules")


def test_their_settings_travel_by_themselves() -> None:
    """The listener has the type only, so a change of settings drains nothing."""
    found = extension_pb2.TypedExtensionConfig.FromString(extensions(OWN)["first"])
    made = rbac_pb2.RBAC()
    assert found.typed_config.Unpack(made)
    assert made.rules_stat_prefix == "x"
    discovered = {one.name: one for one in listener_of(OWN)[1][0].http_filters}["first"]
    assert list(discovered.config_discovery.type_urls) == [RBAC]
    assert not discovered.disabled


def test_a_pools_message_is_on_each_of_its_routes() -> None:
    """And on no other."""
    found = {
        (parse_cluster(cluster_of(route)).pool, "rules" in route.typed_per_filter_config)
        for route in read_routes(route_configuration(OWN)).values()
        if route.HasField("route")
    }
    assert found == {("a", False), ("b", True)}


def test_a_patch_is_merged_into_each_manager() -> None:
    """Fields that it does not name stay, those of newer schemas too."""
    patch = [
        {
            "@type": MANAGER,
            "server_name": "edge",
            "http2_protocol_options": {"max_concurrent_streams": 9},
        },
        {"@type": LISTENER, "tcp_backlog_size": 99},
    ]
    of = fleet(listener={"patch": patch})
    message, found = listener_of(of)
    assert [each.server_name for each in found] == ["edge", "edge"]
    assert {each.http2_protocol_options.max_concurrent_streams.value for each in found} == {9}
    kept = Http2ProtocolOptions.parse(found[0].http2_protocol_options.SerializeToString())
    assert kept.stream_reset_burst == 2000
    assert found[0].max_request_headers_kb.value == 32
    assert message.tcp_backlog_size.value == 99


def test_values_are_replaced() -> None:
    """Protobuf would add durations up, and could switch nothing off."""
    patch = {
        "@type": CLUSTER,
        "connect_timeout": "3s",
        "common_lb_config": {"healthy_panic_threshold": {"value": 7}},
        "outlier_detection": {"split_external_local_origin_errors": False, "interval": "9s"},
        "upstream_connection_options": {"tcp_keepalive": {"keepalive_probes": 0}},
        "metadata": {"filter_metadata": {"a": {"b": 1}}},
    }
    of = fleet(pool(cluster_patch=[patch]))
    data = upstream_resources(of)[CLUSTER_TYPE]["llm/stable/http"]
    cluster = cluster_pb2.Cluster.FromString(data)
    assert cluster.connect_timeout.ToMilliseconds() == 3000
    assert cluster.outlier_detection.interval.ToMilliseconds() == 9000
    assert cluster.common_lb_config.healthy_panic_threshold.value == 7
    assert cluster.common_lb_config.ignore_new_hosts_until_first_hc
    probes = cluster.upstream_connection_options.tcp_keepalive
    assert (probes.keepalive_probes.value, probes.keepalive_time.value) == (0, 15)
    assert cluster.metadata.filter_metadata["a"]["b"] == 1
    assert len(cluster.health_checks) == 1


def test_a_patch_of_a_protocol_is_merged_where_it_is_spoken() -> None:
    """A pool's gRPC ports speak HTTP/2, the others HTTP/1."""
    h2 = {"http2_protocol_options": {"max_concurrent_streams": 9}}
    of = fleet(
        pool(
            cluster_patch=[
                {"@type": CLUSTER, "connect_timeout": "3s"},
                {"@type": OPTIONS, "explicit_http_config": h2},
                {"@type": OPTIONS, "common_http_protocol_options": {"max_headers_count": 7}},
            ]
        )
    )
    found = {}
    for name, data in upstream_resources(of)[CLUSTER_TYPE].items():
        cluster = cluster_pb2.Cluster.FromString(data)
        options = http_protocol_options_pb2.HttpProtocolOptions()
        next(iter(cluster.typed_extension_protocol_options.values())).Unpack(options)
        common, spoken = options.common_http_protocol_options, options.explicit_http_config
        found[name] = (
            cluster.connect_timeout.ToMilliseconds(),
            spoken.http2_protocol_options.max_concurrent_streams.value,
            common.max_headers_count.value,
            common.idle_timeout.seconds,
        )
    assert found["llm/stable/grpc"] == (3000, 9, 7, 60)
    assert found["llm/stable/http"] == (3000, 0, 7, 60)
    assert found["tidegate-picker"] == (250, 0, 0, 60)
