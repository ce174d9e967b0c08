"""Pages of Envoy's admin interface."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from tidegate_api.names import PLACED_KEY

if TYPE_CHECKING:
    import aiohttp

    from tidegate.stack.local import LocalStack


_PLACED = re.compile(rf'"{PLACED_KEY}": (\[[^\]]*\])')


async def envoy_page(http: aiohttp.ClientSession, stack: LocalStack, page: str) -> Any:
    """Return a page of Envoy's admin interface as JSON."""
    async with http.get(f"http://{stack.envoy_admin}/{page}") as answer:
        return orjson.loads(await answer.read())


async def clusters(http: aiohttp.ClientSession, stack: LocalStack) -> dict[str, dict[str, Any]]:
    """Return Envoy's clusters by name."""
    page = await envoy_page(http, stack, "clusters?format=json")
    return {one["name"]: one for one in page["cluster_statuses"]}


async def placed(http: aiohttp.ClientSession, stack: LocalStack) -> list[set[str]]:
    """Return the models of each endpoint that is listed with any, as Envoy's main thread has it.

    A replica is an endpoint of several clusters. Other threads of Envoy follow a moment later.
    """
    async with http.get(f"http://{stack.envoy_admin}/config_dump?include_eds") as answer:
        return [set(orjson.loads(each)) for each in _PLACED.findall(await answer.text())]


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
