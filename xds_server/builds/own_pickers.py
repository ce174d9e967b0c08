"""Each Envoy asks the pickers first that it names as its own, as those of its host or zone.

Envoy sends all to the healthy hosts of the first priority, and to the next one when none is left.
Source: https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/load_balancing/priority.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envoy.config.endpoint.v3 import endpoint_pb2

from tidegate_api.names import ENDPOINT_TYPE, PICKER_CLUSTER

if TYPE_CHECKING:
    from collections.abc import Collection

    from xds_server.protocol.snapshot import Snapshot


def own_pickers_first(snapshot: Snapshot, own: Collection[str]) -> Snapshot:
    """Return the snapshot with the pickers ``own`` before all others; the same object without any.

    Args:
        snapshot: What all Envoys are sent.
        own: Addresses, ``ip:port``; those that are no pickers of the fleet are ignored.
    """
    every = snapshot.resources(ENDPOINT_TYPE).get(PICKER_CLUSTER)
    if every is None:
        return snapshot
    message = endpoint_pb2.ClusterLoadAssignment.FromString(every.message)
    hosts = [host for locality in message.endpoints for host in locality.lb_endpoints]
    first = [host for host in hosts if _address(host) in own]
    if len(first) in (0, len(hosts)):
        return snapshot
    del message.endpoints[:]
    message.endpoints.add(lb_endpoints=first)
    message.endpoints.add(lb_endpoints=[h for h in hosts if h not in first], priority=1)
    body = message.SerializeToString(deterministic=True)
    return snapshot.with_resource(ENDPOINT_TYPE, PICKER_CLUSTER, body)


def _address(host: endpoint_pb2.LbEndpoint) -> str:
    at = host.endpoint.address.socket_address
    name = f"[{at.address}]" if ":" in at.address else at.address
    return f"{name}:{at.port_value}"
