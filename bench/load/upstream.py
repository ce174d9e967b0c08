"""Upstreams that respond immediately: an Envoy in place of replicas.

For benchmarks and tests of the proxy path, without the cost of a replica.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tidegate.stack.envoy import envoy_binary, envoy_command, envoy_environment
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.runfolder import RunFolder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def upstream_bootstrap(addresses: list[str]) -> dict[str, Any]:
    """Return the bootstrap of an Envoy that returns 200 to every request at each address."""

    def listener(address: str) -> dict[str, Any]:
        host, _, port = address.rpartition(":")
        prefix = "type.googleapis.com/envoy.extensions.filters"
        return {
            "name": address,
            "address": {"socket_address": {"address": host, "port_value": int(port)}},
            "filter_chains": [
                {
                    "filters": [
                        {
                            "name": "envoy.filters.network.http_connection_manager",
                            "typed_config": {
                                "@type": f"{prefix}.network.http_connection_manager.v3."
                                "HttpConnectionManager",
                                "stat_prefix": "upstream",
                                "route_config": {
                                    "virtual_hosts": [
                                        {
                                            "name": "all",
                                            "domains": ["*"],
                                            "routes": [
                                                {
                                                    "match": {"prefix": "/"},
                                                    "direct_response": {
                                                        "status": 200,
                                                        "body": {"inline_string": "{}"},
                                                    },
                                                }
                                            ],
                                        }
                                    ]
                                },
                                "http_filters": [
                                    # Read the whole request before the response, as a replica does.
                                    {
                                        "name": "envoy.filters.http.buffer",
                                        "typed_config": {
                                            "@type": f"{prefix}.http.buffer.v3.Buffer",
                                            "max_request_bytes": 2**26,
                                        },
                                    },
                                    {
                                        "name": "envoy.filters.http.router",
                                        "typed_config": {
                                            "@type": f"{prefix}.http.router.v3.Router"
                                        },
                                    },
                                ],
                            },
                        }
                    ]
                }
            ],
        }

    return {"static_resources": {"listeners": [listener(address) for address in addresses]}}


@asynccontextmanager
async def instant_upstreams(count: int) -> AsyncIterator[list[str]]:
    """Run ``count`` upstreams and yield their addresses, ``ip:port``.

    Raises:
        ExtraMissingError: Envoy is not installed.
        OSError: Envoy could not be started.
    """
    with RunFolder.create() as run, HeldPorts() as ports:
        addresses = [ports.address() for _ in range(count)]
        config = run.write("upstream.json", json.dumps(upstream_bootstrap(addresses)))
        supervisor = Supervisor(run.logs)
        command = envoy_command(envoy_binary(), config, 1)
        await supervisor.start("upstreams", command, envoy_environment())
        try:
            yield addresses
        finally:
            await supervisor.stop()
