"""A fleet as a self-contained bootstrap."""

from __future__ import annotations

from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.config.cluster.v3 import cluster_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2

from support.fleets import fleet, pool
from xds_server.snapshots.static import static_bootstrap

SECURE = fleet(
    pool(upstream_tls={"ca": "/ca.crt", "certificate": "/tls.crt", "key": "/tls.key"}),
    listener={"tls": {"certificate": "/l.crt", "key": "/l.key", "client_ca": "/c.crt"}},
)


def test_nothing_is_left_to_discovery() -> None:
    """The bootstrap contains endpoints, routes, limits and secrets."""
    message = bootstrap_pb2.Bootstrap.FromString(static_bootstrap(SECURE))
    static = message.static_resources
    assert {one.type for one in static.clusters} == {cluster_pb2.Cluster.STATIC}
    assert all(one.load_assignment.cluster_name == one.name for one in static.clusters)
    manager = http_connection_manager_pb2.HttpConnectionManager()
    static.listeners[0].filter_chains[0].filters[0].typed_config.Unpack(manager)
    assert manager.route_config.virtual_hosts[0].routes
    assert manager.route_config.validate_clusters.value
    assert not any(one.HasField("config_discovery") for one in manager.http_filters)
    assert len(static.secrets) == 4
    assert "circuit_breakers.llm/stable/http.default.max_requests" in dict(
        message.layered_runtime.layers[0].static_layer.items()
    )


def test_secrets_are_found_by_name_alone() -> None:
    """No TLS socket refers to a config source."""
    static = bootstrap_pb2.Bootstrap.FromString(static_bootstrap(SECURE)).static_resources
    assert {one.name for one in static.secrets} == {
        "listener/certificate",
        "listener/client-ca",
        "pool/llm/ca",
        "pool/llm/certificate",
    }
    sockets = [one.transport_socket for one in static.clusters if one.name.startswith("llm/")]
    sockets.append(static.listeners[0].filter_chains[0].transport_socket)
    for socket in sockets:
        assert b"/c" in socket.typed_config.value
        for context in (tls_pb2.UpstreamTlsContext(), tls_pb2.DownstreamTlsContext()):
            socket.typed_config.Unpack(context)
            assert "sds_config {" not in str(context)
