"""What a picker and Envoy show of the health of a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from support.traffic import picker_state

if TYPE_CHECKING:
    import aiohttp

    from support.replicas import Replica
    from tidegate.stack.local import LocalStack


async def shown(http: aiohttp.ClientSession, page: str, name: str) -> dict[str, Any]:
    """Return the state of a replica in a picker."""
    async with http.get(f"http://{page}/debug/state") as answer:
        pools = orjson.loads(await answer.read())["router"]["pools"]
    return pools["llm"]["endpoints"][name] if pools else {"conditions": None}


async def placed(
    http: aiohttp.ClientSession, stack: LocalStack, name: str, model: str
) -> dict[str, Any]:
    """Return what the picker knows of version 1 of a model on a replica; empty = nothing."""
    told = (await picker_state(http, stack))["probing"]["placement"][name] or {"models": {}}
    return told["models"].get(model, {}).get("1", {})


async def eds_health(
    http: aiohttp.ClientSession, stack: LocalStack, replica: Replica
) -> str | None:
    """Return a replica's health in Envoy, as set by the control server."""
    async with http.get(f"http://{stack.envoy_admin}/clusters?format=json") as answer:
        clusters = {one["name"]: one for one in (await answer.json())["cluster_statuses"]}
    port = int(replica.address.rpartition(":")[2])
    (host,) = (
        host
        for host in clusters["llm/stable/http"]["host_statuses"]
        if host["address"]["socket_address"]["port_value"] == port
    )
    return host["health_status"].get("eds_health_status")
