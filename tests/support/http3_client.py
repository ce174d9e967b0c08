"""The bootstrap of an Envoy that is a client over HTTP/3."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def http3_client(address: str, server: str, trusted: Path) -> dict[str, Any]:
    """Return the bootstrap of an Envoy that sends on over HTTP/3 what it gets over HTTP/1 and 2.

    Args:
        address: Where it listens, ``ip:port``.
        server: Where it sends, ``ip:port``; the certificate there is that of ``edge.test``.
        trusted: Authority that signed the server's certificate.
    """
    host, _, port = server.rpartition(":")
    target = {"address": {"socket_address": {"address": host, "port_value": int(port)}}}
    api = "type.googleapis.com/envoy.extensions."
    validation = {
        "trusted_ca": {"filename": str(trusted)},
    }
    manager = {
        "@type": api + "filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "client",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "h3"}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "router",
                "typed_config": {"@type": api + "filters.http.router.v3.Router"},
            }
        ],
    }
    own_host, _, own_port = address.rpartition(":")
    return {
        "static_resources": {
            "listeners": [
                {
                    "address": {
                        "socket_address": {"address": own_host, "port_value": int(own_port)}
                    },
                    "filter_chains": [{"filters": [{"name": "hcm", "typed_config": manager}]}],
                }
            ],
            "clusters": [
                {
                    "name": "h3",
                    "type": "STATIC",
                    "load_assignment": {
                        "cluster_name": "h3",
                        "endpoints": [{"lb_endpoints": [{"endpoint": target}]}],
                    },
                    "typed_extension_protocol_options": {
                        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                            "@type": api + "upstreams.http.v3.HttpProtocolOptions",
                            "explicit_http_config": {"http3_protocol_options": {}},
                        }
                    },
                    "transport_socket": {
                        "name": "envoy.transport_sockets.quic",
                        "typed_config": {
                            "@type": api + "transport_sockets.quic.v3.QuicUpstreamTransport",
                            "upstream_tls_context": {
                                "sni": "edge.test",
                                "common_tls_context": {"validation_context": validation},
                            },
                        },
                    },
                }
            ],
        }
    }
