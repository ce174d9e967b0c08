"""What operators set is what a real Envoy then does: limits, ramps, shares, brakes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from protos.tidegate.admin.v1 import admin_pb2
from support.traffic import GENERATE, admin, fresh_prompt

pytestmark = pytest.mark.timeout(120)

IN_FORCE_MS = 500
"""From the call to the last acknowledgement; about 20 ms of it are Envoy's, where nobody else
uses the machine."""

OPTIONS = admin_pb2.ChangeOptions(author="test", wait=True, timeout_seconds=20)


async def envoy_page(http, stack, page: str) -> Any:
    """Return a page of Envoy's admin interface as JSON."""
    async with http.get(f"http://{stack.envoy_admin}/{page}") as answer:
        return orjson.loads(await answer.read())


async def clusters(http, stack) -> dict[str, dict[str, Any]]:
    """Return Envoy's own view of its clusters, by name."""
    page = await envoy_page(http, stack, "clusters?format=json")
    return {one["name"]: one for one in page["cluster_statuses"]}


async def stat(http, stack, name: str) -> int:
    """Return one of Envoy's counters or gauges; 0 where it does not exist."""
    async with http.get(f"http://{stack.envoy_admin}/stats", params={"filter": name}) as answer:
        lines = (await answer.text()).splitlines()
    return sum(
        int(line.rpartition(": ")[2]) for line in lines if line.rpartition(": ")[2].isdigit()
    )


async def ask(http, stack, path: str = GENERATE, **headers: str) -> tuple[int, dict[str, str]]:
    """Ask the language model; return status and headers of the answer."""
    body = {"text_input": fresh_prompt(64), "max_tokens": 1}
    async with http.post(stack.http_url + path, json=body, headers=headers) as answer:
        await answer.read()
        return answer.status, dict(answer.headers)


def limit(cluster: dict[str, Any], name: str) -> int:
    """Return a default-priority limit out of Envoy's view of a cluster."""
    (default,) = (
        one
        for one in cluster["circuit_breakers"]["thresholds"]
        if one.get("priority", "DEFAULT") == "DEFAULT"
    )
    return int(default[name])


async def edited(stack, change) -> admin_pb2.ChangeResult:
    """Apply the fleet with its language-model pool changed; everybody takes it."""
    fleet = stack.read_fleet()
    change(next(pool for pool in fleet["pools"] if pool["name"] == "llm"))
    async with admin(stack) as operator:
        result = await operator.Apply(
            admin_pb2.ApplyRequest(fleet=orjson.dumps(fleet).decode(), options=OPTIONS)
        )
    assert result.acked == result.clients == 2, result
    return result


@pytest.mark.parametrize("protocol", ["delta", "sotw"])
async def test_a_limit_changes_without_touching_its_cluster(http, new_stack, protocol):
    """Breaker limits travel over RTDS: active at once, and connections stay."""
    stack = await new_stack(protocol=protocol)
    assert (await ask(http, stack))[0] == 200
    name = "llm/stable/http"
    opened = await stat(http, stack, "^cluster.llm/stable/http.upstream_cx_total$")
    assert opened
    took = []
    for wanted in (5, 6, 7, 8, 9):

        def tighter(pool, wanted=wanted):
            pool["circuit_breaker"] = {"max_requests": wanted, "max_pending": wanted + 100}

        result = await edited(stack, tighter)
        assert list(result.channels) == ["RTDS"]
        took.append(result.elapsed_ms)
        seen = (await clusters(http, stack))[name]
        assert limit(seen, "max_requests") == wanted
    assert min(took) < IN_FORCE_MS
    assert (await ask(http, stack))[0] == 200
    assert await stat(http, stack, "^cluster.llm/stable/http.upstream_cx_total$") == opened
