"""Envoy endpoints of the replicas and pickers (EDS).

Source: ``envoy/config/endpoint/v3/endpoint.proto``. Written with ``xds-protos``, whose encoding is
fast: assignments change most often and grow with the fleet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envoy.config.core.v3 import health_check_pb2
from envoy.config.endpoint.v3 import endpoint_pb2

from tidegate_api.names import PICKER_CLUSTER, TIDEGATE_NAMESPACE, ClusterRef
from xds_server.fleet.model.fields import split_host_port
from xds_server.fleet.view import address_of
from xds_server.resources.clusters import probes_http
from xds_server.resources.fractions import fraction

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from xds_server.fleet.model.fleet import EndpointSpec, PoolSpec

_BRAKE = "tidegate"
"""Category of dropped requests in Envoy's statistics."""

_WEIGHT_SCALE = 100
"""Envoy weight of capacity 1.0; weights are integers of at least 1."""


def _set_address(message: Any, address: str) -> None:
    host, port = split_host_port(address)
    message.socket_address.address = host
    message.socket_address.port_value = port


def assignment(pool: PoolSpec, ref: ClusterRef, sick: Collection[str] = ()) -> bytes:
    """Return the serialized ``ClusterLoadAssignment`` of a variant, possibly without endpoints.

    Args:
        pool: The pool.
        ref: The variant's cluster.
        sick: Ids of replicas to mark as unhealthy; a draining replica stays marked as draining.
    """
    message = endpoint_pb2.ClusterLoadAssignment(cluster_name=str(ref))
    localities: dict[str, Any] = {}
    probe_http = probes_http(pool)
    ranks = _priorities(pool, ref)
    for endpoint in pool.endpoints:
        address = address_of(endpoint, ref.protocol)
        if address is None or pool.variant_of(endpoint) != ref.variant:
            continue
        locality = localities.get(endpoint.zone)
        if locality is None:
            locality = localities[endpoint.zone] = message.endpoints.add()
            locality.locality.zone = endpoint.zone
            locality.priority = ranks[endpoint.zone]
        host = locality.lb_endpoints.add()
        _set_address(host.endpoint.address, address)
        if probe_http and endpoint.http is not None and endpoint.http != address:
            # The gRPC cluster is probed over HTTP too: only HTTP reports a model's readiness as a
            # status code.
            _set_address(host.endpoint.health_check_config.address, endpoint.http)
            host.endpoint.health_check_config.port_value = split_host_port(endpoint.http)[1]
        host.health_status = _health(endpoint, sick)
        host.load_balancing_weight.value = max(1, round(endpoint.capacity * _WEIGHT_SCALE))
    _set_drop(message, pool.drop_overload)
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library


def with_drop(data: bytes, percent: float) -> bytes:
    """Return a serialized ``ClusterLoadAssignment`` with another ``drop_overload``, in percent."""
    message = endpoint_pb2.ClusterLoadAssignment.FromString(data)
    message.ClearField("policy")
    for locality in message.endpoints:
        for host in locality.lb_endpoints:
            host.ClearField("metadata")
    _set_drop(message, percent)
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library


def _set_drop(message: Any, percent: float) -> None:
    if not percent:
        return
    drop = message.policy.drop_overloads.add(category=_BRAKE)  # Envoy allows one at most
    drop.drop_percentage.CopyFrom(fraction(percent))
    for locality in message.endpoints:
        for host in locality.lb_endpoints:
            # Envoy's workers apply a changed drop share only together with changed hosts (1.40:
            # otherwise only the main thread applies it), so each host's metadata contains it too.
            host.metadata.filter_metadata[TIDEGATE_NAMESPACE]["drop_overload"] = percent


def _health(endpoint: EndpointSpec, sick: Collection[str]) -> Any:
    if endpoint.draining:
        return health_check_pb2.DRAINING
    return health_check_pb2.UNHEALTHY if endpoint.id in sick else health_check_pb2.HEALTHY


def _priorities(pool: PoolSpec, ref: ClusterRef) -> dict[str, int]:
    """Return each zone's Envoy priority: 0 is preferred; priorities must have no gaps."""
    held = {
        endpoint.zone
        for endpoint in pool.endpoints
        if address_of(endpoint, ref.protocol) and pool.variant_of(endpoint) == ref.variant
    }
    listed = [zone for zone in pool.zones if zone in held]
    ranks = {zone: rank for rank, zone in enumerate(listed)}
    return {zone: ranks.get(zone, len(listed)) for zone in held}


def picker_assignment(addresses: Sequence[str], name: str = PICKER_CLUSTER) -> bytes:
    """Return the serialized ``ClusterLoadAssignment`` of pickers."""
    message = endpoint_pb2.ClusterLoadAssignment(cluster_name=name)
    locality = message.endpoints.add()
    for address in addresses:
        _set_address(locality.lb_endpoints.add().endpoint.address, address)
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library
