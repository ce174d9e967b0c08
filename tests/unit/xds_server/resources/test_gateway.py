"""Envoy's clusters of the gateways."""

from __future__ import annotations

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2

from support.fleets import fleet
from tidegate_api.names import GATEWAY_CLUSTERS, GATEWAY_SERVICE
from xds_server.fleet.model.fields import UpstreamTls
from xds_server.fleet.model.fleet import Gateways
from xds_server.resources.gateway import gateway_assignment, gateway_cluster, gateway_ports

GATEWAYS = Gateways(http=("127.0.0.1:1", "127.0.0.1:3"), grpc=("127.0.0.1:2", "127.0.0.1:4"))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_first_gateway_is_preferred(protocol) -> None:
    """Each has a priority of its own: sums come from the memory of one."""
    ((name, _, addresses),) = (each for each in gateway_ports(GATEWAYS) if each[1] == protocol)
    data = gateway_assignment(name, addresses)
    message = endpoint_pb2.ClusterLoadAssignment.FromString(data)
    found = {
        group.priority: host.endpoint.address.socket_address.port_value
        for group in message.endpoints
        for host in group.lb_endpoints
    }
    assert found == ({0: 1, 1: 3} if protocol == "http" else {0: 2, 1: 4})
    assert message.cluster_name == GATEWAY_CLUSTERS[protocol]


def test_a_dead_gateway_takes_no_question() -> None:
    """Health checks are of the gateway itself, not of the fleet; there is no panic mode."""
    grpc = cluster_pb2.Cluster.FromString(gateway_cluster("c", "grpc", None))
    http = cluster_pb2.Cluster.FromString(gateway_cluster("c", "http", None))
    assert grpc.health_checks[0].grpc_health_check.service_name == GATEWAY_SERVICE
    assert http.health_checks[0].http_health_check.path == "/healthz"
    for each in (grpc, http):
        assert each.common_lb_config.healthy_panic_threshold.value == 0
        assert not each.HasField("transport_socket")


def test_tls_to_gateways_is_a_secret_by_name() -> None:
    """As to pickers."""
    tls = UpstreamTls(ca="/ca.crt", certificate="/e.crt", key="/e.key", server_name="g.example")
    message = cluster_pb2.Cluster.FromString(gateway_cluster("c", "http", tls))
    assert b"gateways/ca" in message.transport_socket.typed_config.value
    assert fleet(gateway={"http": ["127.0.0.1:1"], "grpc": ["127.0.0.1:2"]}).gateway is not None
