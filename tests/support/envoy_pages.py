"""Pages of Envoy's admin interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from tidegate_api.names import LB_NAMESPACE, PLACED_KEY

if TYPE_CHECKING:
    import aiohttp

    from tidegate.stack.local import LocalStack


async def envoy_page(http: aiohttp.ClientSession, stack: LocalStack, page: str) -> Any:
    """Return a page of Envoy's admin interface as JSON."""
    async with http.get(f"http://{stack.envoy_admin}/{page}") as answer:
        return orjson.loads(await answer.read())


async def clusters(http: aiohttp.ClientSession, stack: LocalStack) -> dict[str, dict[str, Any]]:
    """Return Envoy's clusters by name."""
    page = await envoy_page(http, stack, "clusters?format=json")
    return {one["name"]: one for one in page["cluster_statuses"]}


async def placed(
    http: aiohttp.ClientSession, stack: LocalStack, pool: str
) -> dict[str, list[set[str]]]:
    """Return the models listed for each replica of a pool, as Envoy's main thread has it.

    A replica is an endpoint of several clusters, and has a set for each of them. Other threads of
    Envoy follow a moment later.
    """
    names = {at: each.name for each in stack.replicas for at in (each.http, each.grpc)}
    found: dict[str, list[set[str]]] = {}
    assignments = [
        each["endpoint_config"]
        for config in (await envoy_page(http, stack, "config_dump?include_eds"))["configs"]
        for each in config.get("dynamic_endpoint_configs", ())
    ]
    hosts = [
        host
        for each in assignments
        if each["cluster_name"].startswith(f"{pool}/")
        for locality in each["endpoints"]
        for host in locality["lb_endpoints"]
    ]
    for host in hosts:
        at = host["endpoint"]["address"]["socket_address"]
        of_host = host.get("metadata", {}).get("filter_metadata", {})
        listed = of_host.get(LB_NAMESPACE, {}).get(PLACED_KEY, ())
        found.setdefault(names[f"{at['address']}:{at['port_value']}"], []).append(set(listed))
    return found


async def stat(http: aiohttp.ClientSession, stack: LocalStack, name: str) -> int:
    """Return a counter or gauge of Envoy; 0 if it does not exist."""
    page = await envoy_page(http, stack, "stats?format=json")
    return sum(one.get("value", 0) for one in page["stats"] if one.get("name") == name)


def limit(cluster: dict[str, Any], name: str) -> int:
    """Return a default-priority limit of a cluster in Envoy."""
    (default,) = (
        one
        for one in cluster["circuit_breakers"]["thresholds"]
        if one.get("priority", "DEFAULT") == "DEFAULT"
    )
    return int(default[name])
