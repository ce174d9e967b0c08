"""llm-d's router: its endpoint picker with the endpoints in a file, behind Envoy. Pure functions.

Both configurations are those of its repository (llm-d/llm-d-router, ebab687, 2026-08), with the
data sources that its chart adds:

* ``llm-d-chart``: ``default-plugins.yaml`` of ``config/charts/routerlib``;
* ``llm-d-no-hit-lru``: ``test/perf/config/router-configs/optimized-baseline.yaml``.

Envoy has the listener, the external processor and the ORIGINAL_DST cluster of the standalone chart.
The picker is built by hand, as the project publishes no binaries (``docs/reference/bench.md``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.emulator.fleet import ReplicaAddresses

CHART: Final = "llm-d-chart"
NO_HIT_LRU: Final = "llm-d-no-hit-lru"
NAMES: Final = (CHART, NO_HIT_LRU)
_DESTINATION: Final = "x-gateway-destination-endpoint"
_TYPES: Final = "type.googleapis.com/envoy.extensions"
_MOST: Final = 40_000
_FOREVER: Final = "86400s"
_PREFIX: Final = {
    "type": "approx-prefix-cache-producer",
    "parameters": {"maxPrefixTokensToMatch": 100_000},
}
"""The optimised baseline's; the chart leaves the default of 131,072."""
_WEIGHTS: Final = {
    CHART: {"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3},
    NO_HIT_LRU: {
        "queue-scorer": 2,
        "kv-cache-utilization-scorer": 2,
        "prefix-cache-scorer": 3,
        "no-hit-lru-scorer": 2,
    },
}


def endpoints(places: Sequence[ReplicaAddresses]) -> dict[str, Any]:
    """Return the content of the endpoints file."""
    listed = []
    for place in places:
        host, _, port = place.http.rpartition(":")
        listed.append({"name": place.name, "address": host, "port": port})
    return {"endpoints": listed}


def configuration(name: str, endpoints_file: Path) -> dict[str, Any]:
    """Return the picker's configuration.

    Args:
        name: One of ``NAMES``.
        endpoints_file: File with the endpoints.
    """
    weights = _WEIGHTS[name]
    return {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [
            {
                "name": "endpoints",
                "type": "file-discovery",
                "parameters": {"path": str(endpoints_file)},
            },
            *([_PREFIX] if name == NO_HIT_LRU else []),
            *({"type": scorer} for scorer in weights),
            {
                "type": "metrics-data-source",
                "parameters": {"scheme": "http", "path": "/metrics", "insecureSkipVerify": True},
            },
            {"type": "core-metrics-extractor"},
        ],
        "schedulingProfiles": [
            {
                "name": "default",
                "plugins": [
                    {"pluginRef": scorer, "weight": weight} for scorer, weight in weights.items()
                ],
            }
        ],
        "dataLayer": {"discovery": {"pluginRef": "endpoints"}},
    }


def command(binary: Path, config: Path, grpc: str, health: str, metrics: str) -> tuple[str, ...]:
    """Return the picker's command line.

    Args:
        binary: The built picker.
        config: File with its configuration.
        grpc: Address of its service, ``ip:port``; it listens on all addresses of the port.
        health: Address of its health service.
        metrics: Address of its metrics.
    """
    return (
        *(str(binary), "--config-file", str(config), "--pool-name", "bench"),
        *("--pool-namespace", "bench", "--secure-serving=false", "--metrics-endpoint-auth=false"),
        *("--grpc-port", _port(grpc), "--grpc-health-port", _port(health)),
        *("--metrics-port", _port(metrics), "--tracing=false"),
    )


def bootstrap(listener: str, admin: str, picker: str) -> dict[str, Any]:
    """Return the bootstrap of the Envoy.

    Args:
        listener: Listen address, ``ip:port``.
        admin: Address of the admin page, ``ip:port``.
        picker: Address of the picker, ``ip:port``.
    """
    return {
        "admin": {"address": _address(admin)},
        "static_resources": {
            "listeners": [
                {
                    "name": "in",
                    "address": _address(listener),
                    "per_connection_buffer_limit_bytes": 32_768,
                    "filter_chains": [{"filters": [_manager()]}],
                }
            ],
            "clusters": [_replicas(), _picker(picker)],
        },
    }


def _manager() -> dict[str, Any]:
    route = {"cluster": "replicas", "timeout": _FOREVER, "idle_timeout": _FOREVER}
    return {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "in",
            "route_config": {
                "virtual_hosts": [
                    {
                        "name": "all",
                        "domains": ["*"],
                        "routes": [{"match": {"prefix": "/"}, "route": route}],
                    }
                ]
            },
            "http_filters": [
                {
                    "name": "envoy.filters.http.ext_proc",
                    "typed_config": {
                        "@type": f"{_TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
                        "failure_mode_allow": True,
                        "grpc_service": {
                            "envoy_grpc": {"cluster_name": "picker"},
                            "timeout": "10s",
                        },
                        "processing_mode": {
                            "request_header_mode": "SEND",
                            "response_header_mode": "SEND",
                            "request_body_mode": "FULL_DUPLEX_STREAMED",
                            "response_body_mode": "FULL_DUPLEX_STREAMED",
                            "request_trailer_mode": "SEND",
                            "response_trailer_mode": "SEND",
                        },
                        "message_timeout": "1000s",
                    },
                },
                {
                    "name": "envoy.filters.http.router",
                    "typed_config": {
                        "@type": f"{_TYPES}.filters.http.router.v3.Router",
                        "suppress_envoy_headers": True,
                    },
                },
            ],
        },
    }


def _replicas() -> dict[str, Any]:
    most = {"max_connections": _MOST, "max_pending_requests": _MOST, "max_requests": _MOST}
    return {
        "name": "replicas",
        "type": "ORIGINAL_DST",
        "connect_timeout": "1000s",
        "lb_policy": "CLUSTER_PROVIDED",
        "circuit_breakers": {"thresholds": [most]},
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": _DESTINATION},
    }


def _picker(address: str) -> dict[str, Any]:
    options = f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions"
    http2 = {"initial_stream_window_size": 65_536, "initial_connection_window_size": 1_048_576}
    return {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": _FOREVER,
        "lb_policy": "LEAST_REQUEST",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": options,
                "explicit_http_config": {"http2_protocol_options": http2},
            }
        },
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(address)}}]}],
        },
    }


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def _address(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}
