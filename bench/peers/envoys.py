"""Envoy alone as a load balancer with static replicas. Pure functions.

Health checks, retries and circuit-breaker limits are those of Tidegate's Envoy, so that only the
choice of replicas differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.emulator.fleet import ReplicaAddresses

SESSION: Final = "x-session-id"
POLICIES: Final = {
    "round-robin": {"lb_policy": "ROUND_ROBIN"},
    "least-request": {"lb_policy": "LEAST_REQUEST"},
    "ring-hash": {"lb_policy": "RING_HASH"},
}
BUFFER: Final = 2**20
_TYPES: Final = "type.googleapis.com/envoy.extensions"
_RETRY_ON: Final = "connect-failure,refused-stream,reset-before-request,reset"


def bootstrap(
    policy: str, listener: str, admin: str, places: Sequence[ReplicaAddresses]
) -> dict[str, Any]:
    """Return the bootstrap of an Envoy that balances over ``places``.

    Args:
        policy: A key of ``POLICIES``; ``ring-hash`` hashes the session header.
        listener: Listen address, ``ip:port``.
        admin: Address of the admin page, ``ip:port``.
        places: Addresses of the replicas.
    """
    route: dict[str, Any] = {
        "cluster": "replicas",
        "timeout": "0s",
        "retry_policy": {"retry_on": _RETRY_ON, "num_retries": 2},
    }
    if policy == "ring-hash":
        route["hash_policy"] = [{"header": {"header_name": SESSION}}]
    manager = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "request_body_buffer_limit": BUFFER,
                    "routes": [{"match": {"prefix": "/"}, "route": route}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"},
            }
        ],
    }
    return {
        "admin": {"address": _address(admin)},
        "static_resources": {
            "listeners": [
                {
                    "name": "in",
                    "address": _address(listener),
                    "per_connection_buffer_limit_bytes": BUFFER,
                    "filter_chains": [
                        {
                            "filters": [
                                {
                                    "name": "envoy.filters.network.http_connection_manager",
                                    "typed_config": manager,
                                }
                            ]
                        }
                    ],
                }
            ],
            "clusters": [_cluster(policy, places)],
        },
    }


def _cluster(policy: str, places: Sequence[ReplicaAddresses]) -> dict[str, Any]:
    most = {"max_connections": 4096, "max_pending_requests": 4096, "max_requests": 4096}
    return {
        "name": "replicas",
        "type": "STATIC",
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": BUFFER,
        **POLICIES[policy],
        "circuit_breakers": {"thresholds": [{**most, "max_retries": 32}]},
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "1s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/v2/models/toy-llm/ready"},
            }
        ],
        "load_assignment": {
            "cluster_name": "replicas",
            "endpoints": [
                {
                    "lb_endpoints": [
                        {"endpoint": {"address": _address(place.http)}} for place in places
                    ]
                }
            ],
        },
    }


def _address(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}
