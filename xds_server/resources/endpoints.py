"""Envoy endpoints of the replicas and pickers (EDS).

Source: ``envoy/config/endpoint/v3/endpoint.proto``. Written with ``xds-protos``, whose encoding is
fast: assignments change most often and grow with the fleet. Each endpoint is serialized once, and
the assignments are put together from these parts: the field of a message is the same bytes wherever
it stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envoy.config.core.v3 import health_check_pb2
from envoy.config.endpoint.v3 import endpoint_components_pb2, endpoint_pb2

from tidegate_api.names import (
    LB_NAMESPACE,
    PICKER_CLUSTER,
    PLACED_KEY,
    TIDEGATE_NAMESPACE,
    ClusterRef,
)
from xds_server.fleet.memo import ByIdentity
from xds_server.fleet.model.fields import split_host_port
from xds_server.fleet.view import address_of
from xds_server.protocol.wire import delimited
from xds_server.resources.clusters import probes_http
from xds_server.resources.fractions import fraction

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from xds_server.fleet.model.fleet import EndpointSpec, PoolSpec

_BRAKE = "tidegate"
"""Category of dropped requests in Envoy's statistics."""

_DRAINING: int = health_check_pb2.DRAINING
_UNHEALTHY: int = health_check_pb2.UNHEALTHY
_HEALTHY: int = health_check_pb2.HEALTHY

_LOCALITY = endpoint_pb2.ClusterLoadAssignment.ENDPOINTS_FIELD_NUMBER
_LB_ENDPOINT = endpoint_components_pb2.LocalityLbEndpoints.LB_ENDPOINTS_FIELD_NUMBER

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
    hosts: dict[str, list[bytes]] = {}
    probe_http = probes_http(pool)
    for endpoint in pool.endpoints:
        address = address_of(endpoint, ref.protocol)
        if address is None or pool.variant_of(endpoint) != ref.variant:
            continue
        probed = endpoint.http if probe_http and endpoint.http != address else None
        host = _lb_endpoint(endpoint, address, probed, _health(endpoint, sick))
        hosts.setdefault(endpoint.zone, []).append(host)
    ranks = _priorities(pool, hosts)
    parts = [endpoint_pb2.ClusterLoadAssignment(cluster_name=str(ref)).SerializeToString()]
    for zone, found in hosts.items():
        head, tail = (
            endpoint_components_pb2.LocalityLbEndpoints(),
            endpoint_components_pb2.LocalityLbEndpoints(),
        )
        head.locality.zone = zone
        tail.priority = ranks[zone]
        locality = (head.SerializeToString(), *found, tail.SerializeToString())
        parts.append(delimited(_LOCALITY, b"".join(locality)))
    data = b"".join(parts)
    return with_drop(data, pool.drop_overload) if pool.drop_overload else data


@ByIdentity
def _lb_endpoint(endpoint: EndpointSpec, address: str, probed: str | None, health: int) -> bytes:
    """Return the field of a locality with one ``LbEndpoint``.

    Args:
        endpoint: The replica.
        address: Its address.
        probed: The address at which its health is checked; ``None`` = the same.
        health: Its ``HealthStatus``.
    """
    host = endpoint_components_pb2.LbEndpoint(health_status=health)
    _set_address(host.endpoint.address, address)
    if probed is not None:
        # The gRPC cluster is probed over HTTP too: only HTTP reports a model's readiness as a
        # status code.
        _set_address(host.endpoint.health_check_config.address, probed)
        host.endpoint.health_check_config.port_value = split_host_port(probed)[1]
    host.load_balancing_weight.value = max(1, round(endpoint.capacity * _WEIGHT_SCALE))
    if endpoint.listed:
        host.metadata.filter_metadata[LB_NAMESPACE].update({PLACED_KEY: list(endpoint.listed)})
    return delimited(_LB_ENDPOINT, host.SerializeToString(deterministic=True))


def with_drop(data: bytes, percent: float) -> bytes:
    """Return a serialized ``ClusterLoadAssignment`` with another ``drop_overload``, in percent."""
    message = endpoint_pb2.ClusterLoadAssignment.FromString(data)
    message.ClearField("policy")
    for locality in message.endpoints:
        for host in locality.lb_endpoints:
            host.metadata.filter_metadata.pop(TIDEGATE_NAMESPACE, None)
            if not host.metadata.filter_metadata:
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


def _health(endpoint: EndpointSpec, sick: Collection[str]) -> int:
    if endpoint.draining:
        return _DRAINING
    return _UNHEALTHY if endpoint.id in sick else _HEALTHY


def _priorities(pool: PoolSpec, held: Collection[str]) -> dict[str, int]:
    """Return each zone's Envoy priority: 0 is preferred; priorities must have no gaps."""
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
