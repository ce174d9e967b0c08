"""A fleet that uses every field of the edge, for tests of what an Envoy accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

FILTERS = "type.googleapis.com/envoy.extensions.filters.http."
MANAGER = (
    "type.googleapis.com/envoy.extensions.filters.network"
    ".http_connection_manager.v3.HttpConnectionManager"
)
KEYS = '{"keys": [{"kty": "oct", "k": "c2VjcmV0", "alg": "HS256", "kid": "a"}]}'
"""A set of keys (JWKS)."""


def edge_fleet(folder: Path, port: int = 10000, inner: int = 10001) -> dict[str, Any]:
    """Return the fleet.

    Args:
        folder: Where its certificates are made.
        port: Port of the listener, over TCP and UDP.
        inner: Port of the further listener.
    """
    authority = Authority(folder, "authority")
    pair = authority.sign("edge", "DNS:edge.test")
    providers = {"fetched": {"jwks_url": "https://127.0.0.1:9/keys"}, "given": {"jwks": KEYS}}
    connections = {"max_duration": "1h", "max_requests": 1000, "h2_keepalive": "30s"}
    return {
        "listener": {
            "address": f"127.0.0.1:{port}",
            "tls": {"certificate": str(pair.certificate), "key": str(pair.key)},
            "http3": True,
            "hosts": [{"names": ["*.edge.test"], "pools": ["open"]}],
            "further": [{"name": "inner", "address": f"127.0.0.1:{inner}", "proxy_protocol": True}],
            "connections": {**connections, "idle": "10m", "tcp_keepalive": "60s"},
            "jwt": [
                {
                    "name": name,
                    "issuer": f"https://{name}.test",
                    "audiences": ["inference"],
                    "jwks_ca": str(authority.own.certificate),
                    **keys,
                }
                for name, keys in providers.items()
            ],
            "cors": {"origins": ["https://*.page.test"], "credentials": True},
            "compression": {"algorithms": ["gzip", "brotli", "zstd"]},
            "rate_limit": {"requests": 1000, "burst": 2000},
            "http_filters": {
                "before": [
                    {
                        "name": "faults",
                        "config": {
                            "@type": FILTERS + "fault.v3.HTTPFault",
                            "abort": {"header_abort": {}, "percentage": {"numerator": 1}},
                        },
                    }
                ],
                "after": [{"name": "rules", "config": {"@type": FILTERS + "rbac.v3.RBAC"}}],
            },
            "patch": [{"@type": MANAGER, "xff_num_trusted_hops": 1}],
        },
        "pools": [
            {
                "name": "guarded",
                "default": True,
                "match": {"models": ["guarded"], "paths": ["/v1/chat/completions"]},
                "endpoints": [{"id": "g1", "http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"}],
                "jwt": {"any_of": list(providers), "audiences": ["llm"]},
                "rate_limit": {"requests": 50},
                "connections": connections,
                "http_filters": {"rules": {"@type": FILTERS + "rbac.v3.RBACPerRoute"}},
                "cluster_patch": [
                    {
                        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
                        "connect_timeout": "2s",
                    }
                ],
            },
            {
                "name": "open",
                "match": {"models": ["open"], "paths": ["/v1/chat/completions"]},
                "endpoints": [{"id": "o1", "http": "127.0.0.1:8100", "grpc": "127.0.0.1:8101"}],
            },
        ],
    }
