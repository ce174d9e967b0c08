"""A fleet as a self-contained bootstrap, for validation by Envoy itself (``--mode validate``).

It contains the resources that the control server would send, with each reference by discovery
replaced by the resource itself: assignments in their clusters, routes and settings of filters in
the listener, limits and weights in static runtime layers, and secrets as static secrets, so that
Envoy reads the files that they name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)
from envoy.extensions.transport_sockets.quic.v3 import quic_transport_pb2
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2
from envoy.service.runtime.v3 import rtds_pb2

from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    EXTENSION_TYPE,
    LISTENER_TYPE,
    ROUTE_TYPE,
    RUNTIME_TYPE,
    SECRET_TYPE,
)
from xds_server.fleet.members.members import Members
from xds_server.snapshots.build import front_resources, upstream_resources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xds_server.fleet.model.fleet import Fleet


def static_bootstrap(fleet: Fleet) -> bytes:
    """Return the serialized ``Bootstrap``; write it to a file whose name ends with ``.pb``."""
    fleet = Members().published(fleet).fleet  # names have no address here
    upstream, front = upstream_resources(fleet), front_resources(fleet)
    message = bootstrap_pb2.Bootstrap()
    message.node.id = message.node.cluster = "tidegate-validate"
    for name, data in front[RUNTIME_TYPE].items():
        runtime = rtds_pb2.Runtime.FromString(data)
        message.layered_runtime.layers.add(name=name).static_layer.CopyFrom(runtime.layer)
    static = message.static_resources
    for data in front[SECRET_TYPE].values():
        static.secrets.add().ParseFromString(data)
    for name, data in upstream[CLUSTER_TYPE].items():
        cluster = static.clusters.add()
        cluster.ParseFromString(data)
        if cluster.type != cluster_pb2.Cluster.EDS:
            continue
        cluster.type = cluster_pb2.Cluster.STATIC
        cluster.ClearField("eds_cluster_config")
        cluster.load_assignment.ParseFromString(upstream[ENDPOINT_TYPE][name])
        _stand_alone(cluster.transport_socket)
    for data in front[LISTENER_TYPE].values():
        listener = static.listeners.add()
        listener.ParseFromString(data)
        for chain in listener.filter_chains:
            _stand_alone(chain.transport_socket)
            for one in chain.filters:
                _alone(one.typed_config, front[ROUTE_TYPE], front[EXTENSION_TYPE])
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library


def _alone(config: Any, routes: Mapping[str, bytes], extensions: Mapping[str, bytes]) -> None:
    manager = http_connection_manager_pb2.HttpConnectionManager()
    if config.Unpack(manager):
        manager.route_config.CopyFrom(
            route_pb2.RouteConfiguration.FromString(routes[manager.rds.route_config_name])
        )
        # Only with static clusters can Envoy check that the clusters named by routes exist.
        manager.route_config.validate_clusters.value = True
        for one in manager.http_filters:
            if one.HasField("config_discovery"):
                made = extension_pb2.TypedExtensionConfig.FromString(extensions[one.name])
                one.typed_config.CopyFrom(made.typed_config)
        config.Pack(manager, deterministic=True)


def _stand_alone(socket: Any) -> None:
    """Make a TLS socket refer to static secrets."""
    over_udp = quic_transport_pb2.QuicDownstreamTransport()
    if socket.typed_config.Unpack(over_udp):
        common = over_udp.downstream_tls_context.common_tls_context
        for config in common.tls_certificate_sds_secret_configs:
            config.ClearField("sds_config")
        socket.typed_config.Pack(over_udp, deterministic=True)
        return
    for context in (tls_pb2.UpstreamTlsContext(), tls_pb2.DownstreamTlsContext()):
        if not socket.typed_config.Unpack(context):
            continue
        common = context.common_tls_context
        named = list(common.tls_certificate_sds_secret_configs)
        if common.HasField("validation_context_sds_secret_config"):
            named.append(common.validation_context_sds_secret_config)
        if common.HasField("combined_validation_context"):
            named.append(common.combined_validation_context.validation_context_sds_secret_config)
        for config in named:
            config.ClearField("sds_config")
        socket.typed_config.Pack(context, deterministic=True)
