"""What clients are to hold now, and by it who may still give a replica new requests. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from envoy.config.core.v3 import health_check_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from google.protobuf import any_pb2

from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import ENDPOINT_TYPE, POOL_TYPE
from xds_server.fleet.memo import ByIdentity
from xds_server.fleet.model.fields import join_host_port

if TYPE_CHECKING:
    from collections.abc import Collection

    from xds_server.protocol.snapshot import Resource, Snapshot


class ClientSnapshots(NamedTuple):
    """What clients are to hold now, which may be a stage of a change."""

    pickers: Snapshot | None
    """``None`` = nothing was published."""
    envoys: Snapshot | None

    def pools_of(self, endpoint: str) -> list[str]:
        """Return the pools in which pickers may give a replica new requests."""
        pools = {} if self.pickers is None else self.pickers.resources(POOL_TYPE)
        return sorted(name for name, each in pools.items() if endpoint in _active(each))

    def leaving(self, endpoint: str) -> frozenset[str]:
        """Return the models that leave a replica in all pools of pickers that have it."""
        pools = {} if self.pickers is None else self.pickers.resources(POOL_TYPE)
        found = [of[endpoint] for each in pools.values() if endpoint in (of := _leaving(each))]
        return frozenset.intersection(*found) if found else frozenset()

    def chosen(self, addresses: Collection[str]) -> bool:
        """Return whether Envoys may choose one of these addresses by themselves."""
        held = {} if self.envoys is None else self.envoys.resources(ENDPOINT_TYPE)
        return any(not _chosen(each).isdisjoint(addresses) for each in held.values())


@ByIdentity
def _active(resource: Resource) -> frozenset[str]:
    """Return the replicas of a pickers' pool that do not drain."""
    message = pool_pb2.Pool()
    any_pb2.Any.FromString(resource.any).Unpack(message)
    return frozenset(each.id for each in message.endpoints if not each.draining)


@ByIdentity
def _leaving(resource: Resource) -> dict[str, frozenset[str]]:
    """Return the models that leave each replica of a pickers' pool."""
    message = pool_pb2.Pool()
    any_pb2.Any.FromString(resource.any).Unpack(message)
    return {each.id: frozenset(each.leaving) for each in message.endpoints}


@ByIdentity
def _chosen(resource: Resource) -> frozenset[str]:
    """Return the addresses of an assignment that do not drain."""
    message = endpoint_pb2.ClusterLoadAssignment.FromString(
        any_pb2.Any.FromString(resource.any).value
    )
    return frozenset(
        join_host_port(at.address, at.port_value)
        for locality in message.endpoints
        for host in locality.lb_endpoints
        if host.health_status != health_check_pb2.DRAINING
        for at in (host.endpoint.address.socket_address,)
    )
