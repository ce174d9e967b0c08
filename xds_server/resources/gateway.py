"""Envoy's clusters of the gateways, one per protocol (CDS and EDS).

Rules:

1. Envoy asks the first gateway that lives, and a later one only if none before it does: gateways
   remember what replicas had counted before they restarted, each for itself.
2. A gateway that is dead or hangs takes no question. If all are, questions are answered with 503;
   inferences do not come here.

Source: ``envoy/config/cluster/v3/cluster.proto``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from envoy.config.endpoint.v3 import endpoint_pb2
from envoy_data_plane.envoy.config.cluster.v3 import (
    Cluster,
    ClusterCommonLbConfig,
    ClusterDiscoveryType,
    ClusterEdsClusterConfig,
)
from envoy_data_plane.envoy.config.core.v3 import (
    HealthCheck,
    HealthCheckGrpcHealthCheck,
    HealthCheckHttpHealthCheck,
)
from envoy_data_plane.envoy.type.v3 import Percent

from tidegate_api.names import (
    GATEWAY_CLUSTERS,
    GATEWAY_NODE_CLUSTER,
    GATEWAY_OPERATOR_CLUSTERS,
    GATEWAY_SERVICE,
)
from xds_server.fleet.model.edge import ReplicaConnections
from xds_server.fleet.model.fields import split_host_port
from xds_server.resources.clusters import protocol_options
from xds_server.resources.secrets import to_gateways
from xds_server.resources.sources import ads_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tidegate_api.names import Protocol
    from xds_server.fleet.model.fields import UpstreamTls
    from xds_server.fleet.model.fleet import Gateways

HEALTH_PATH: Final = "/healthz"
_FETCH_TIMEOUT: Final = timedelta(seconds=2)


def gateway_ports(gateways: Gateways) -> Iterator[tuple[str, Protocol, tuple[str, ...]]]:
    """Yield (cluster, protocol, addresses) of the gateways' ports."""
    yield GATEWAY_CLUSTERS["http"], "http", gateways.http
    yield GATEWAY_CLUSTERS["grpc"], "grpc", gateways.grpc
    if gateways.operators is not None:
        yield GATEWAY_OPERATOR_CLUSTERS["http"], "http", gateways.operators.http
        yield GATEWAY_OPERATOR_CLUSTERS["grpc"], "grpc", gateways.operators.grpc


def gateway_cluster(name: str, protocol: Protocol, tls: UpstreamTls | None) -> bytes:
    """Return the serialized ``Cluster`` of the gateways' ports for one protocol."""
    check = HealthCheck(
        timeout=timedelta(seconds=2),
        interval=timedelta(seconds=1),
        no_traffic_interval=timedelta(seconds=1),
        unhealthy_interval=timedelta(milliseconds=250),
        unhealthy_threshold=2,
        healthy_threshold=1,
    )
    if protocol == "grpc":
        check.grpc_health_check = HealthCheckGrpcHealthCheck(
            service_name=GATEWAY_SERVICE, authority=GATEWAY_NODE_CLUSTER
        )
    else:
        check.http_health_check = HealthCheckHttpHealthCheck(
            path=HEALTH_PATH, host=GATEWAY_NODE_CLUSTER
        )
    return bytes(
        Cluster(
            name=name,
            type=ClusterDiscoveryType.EDS,
            eds_cluster_config=ClusterEdsClusterConfig(
                service_name=name, eds_config=ads_source(_FETCH_TIMEOUT)
            ),
            connect_timeout=timedelta(seconds=0.5),
            common_lb_config=ClusterCommonLbConfig(
                healthy_panic_threshold=Percent(value=0), update_merge_window=timedelta(0)
            ),
            health_checks=[check],
            transport_socket=None if tls is None else to_gateways(tls, protocol),
            typed_extension_protocol_options=protocol_options(protocol, ReplicaConnections()),
        )
    )


def gateway_assignment(name: str, addresses: Iterable[str]) -> bytes:
    """Return the serialized ``ClusterLoadAssignment``: one priority for each gateway."""
    message = endpoint_pb2.ClusterLoadAssignment(cluster_name=name)
    for priority, address in enumerate(addresses):
        locality = message.endpoints.add(priority=priority)
        host, port = split_host_port(address)
        at = locality.lb_endpoints.add().endpoint.address.socket_address
        at.address, at.port_value = host, port
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library
