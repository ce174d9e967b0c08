"""Alerts that end rollouts, by the recorded answers of a real Prometheus."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from support.fleets import fleet, pool
from xds_server.applications.canary.guards import PoolAlerts
from xds_server.applications.keepers.canary_alerts import ASK_S, CanaryAlerts, fires

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RECORDED = Path(__file__).parents[3] / "fixtures" / "prometheus-2.42.0" / "queries.json"
ANSWERS: dict[str, tuple[int, str]] = json.loads(RECORDED.read_text("utf-8"))["answers"]
SPECS: Any = [SimpleNamespace(pool="llm")]
SLOW = 'label_replace(vector(3),"alertname","TidegateSlow","","")'


class Asked:
    """Alerts of one pool, and the Prometheus that they ask."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queries: list[str] = []
        self.control: Any = SimpleNamespace(written=fleet())
        self.alerts = CanaryAlerts(self.control, lambda: self.now)
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        """Answer as Prometheus did."""
        query = request.query["query"]
        self.queries.append(query)
        status, body = ANSWERS[query]
        return web.Response(status=status, text=body, content_type="application/json")

    def write(self, *queries: str, url: str = "") -> None:
        """Write queries into the fleet."""
        alerts = [{"url": url or self.url, "query": each} for each in queries]
        self.control.written = fleet(pool(default=True, canary={"alerts": alerts}))

    async def told(self) -> PoolAlerts:
        """Ask, and return what is known."""
        await self.alerts.ask(SPECS)
        return self.alerts("llm")


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    """Return alerts that nothing asks yet."""
    made = Asked()
    app = web.Application()
    app.router.add_get("/api/v1/query", made.answer)
    async with TestServer(app) as server, made.alerts:
        made.url = str(server.make_url("")).rstrip("/")
        yield made


async def test_an_alert_fires_where_its_query_returns_more_than_zero(asked: Asked) -> None:
    """By the name of its rule, or the query."""
    asked.write("vector(0)", SLOW, "absent(vector(1))", "1")
    assert await asked.told() == PoolAlerts(["TidegateSlow", "1"], [])
    assert sorted(asked.queries) == sorted(["vector(0)", SLOW, "absent(vector(1))", "1"])


async def test_what_is_not_known_is_told_apart(asked: Asked) -> None:
    """A wrong query, and a Prometheus that is away: nothing fires, and the step is held."""
    asked.write("nonsense(", "up[5m]")
    firing, unknown = await asked.told()
    assert firing == []
    assert "unclosed left parenthesis" in unknown[0]
    assert "must return a vector or a scalar" in unknown[1]
    asked.write("vector(1)", url="http://127.0.0.1:1")
    firing, unknown = await asked.told()
    assert (firing, unknown) == ([], ["http://127.0.0.1:1: refuses connections"])
    asked.write("vector(1)", url="http://127.0.0.1:99999")
    firing, unknown = await asked.told()
    assert firing == []
    assert "cannot be asked" in unknown[0]


async def test_it_is_asked_every_few_seconds_and_after_an_edit(asked: Asked) -> None:
    """Looks may come more often; another query is not known before it was asked."""
    asked.write("vector(0)")
    assert asked.alerts("llm") == PoolAlerts((), ["not asked yet"])
    for _ in range(3):
        assert await asked.told() == PoolAlerts([], [])
    assert asked.queries == ["vector(0)"]
    asked.write("vector(1)")
    assert asked.alerts("llm").unknown
    assert (await asked.told()).firing == ["vector(1)"]
    asked.now += ASK_S
    await asked.told()
    assert asked.queries == ["vector(0)", "vector(1)", "vector(1)"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"status": "success", "data": {"resultType": "vector"}}', b"\xff"]
)
def test_what_is_no_answer_fires_nothing(body: bytes) -> None:
    """Another server may listen there."""
    assert isinstance(fires(200, body), str)


@pytest.mark.parametrize(("value", "fired"), [("0.2", 1), ("+Inf", 1), ("0", 0), ("NaN", 0)])
def test_a_ratio_of_no_requests_fires_nothing(value: str, fired: int) -> None:
    """Prometheus divides 0 by 0 to NaN."""
    sample = {"metric": {}, "value": [1.8e9, value]}
    data = {"resultType": "vector", "result": [sample]}
    found = fires(200, json.dumps({"status": "success", "data": data}).encode())
    assert found == [{}] * fired
