"""Metrics and the debug page."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from ext_proc.exchange import Pick
from ext_proc.observability.counts import MAX_SERIES
from ext_proc.observability.metrics import Metrics, debug_app
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.ticket import Ticket


def pick(pool="llm", tokens=100, matched=40):
    decision = Decision(None, ("a:1",), pool, "stable", "prefix", matched_blocks=2)
    return Pick(
        "a:1",
        (),
        clear_route_cache=False,
        ticket=None,
        decision=decision,
        prompt_blocks=5,
        prompt_tokens=tokens,
        matched_tokens=matched,
    )


@pytest.fixture
def registry():
    return CollectorRegistry()


def value(registry, name, **labels):
    return registry.get_sample_value(f"tidegate_picker_{name}", labels)


def test_picks_count_prompts_where_there_is_one(registry):
    """An unread prompt is unknown, not zero blocks."""
    metrics = Metrics(registry)
    metrics.picked(pick())
    metrics.picked(pick(tokens=None))
    assert value(registry, "picks_total", pool="llm", variant="stable", reason="prefix") == 2
    assert value(registry, "prompt_tokens_total", part="all") == 100
    assert value(registry, "prompt_tokens_total", part="matched") == 40
    assert value(registry, "prompt_blocks_total", part="all") == 5
    assert value(registry, "prompt_blocks_total", part="matched") == 2


def test_matched_tokens_never_exceed_the_prompt(registry):
    """Both are estimates; their ratio stays within 1."""
    Metrics(registry).picked(pick(tokens=30, matched=64))
    assert value(registry, "prompt_tokens_total", part="matched") == 30


def test_series_are_bounded(registry):
    """Label sets above the bound count under ``other``."""
    metrics = Metrics(registry)
    for number in range(MAX_SERIES + 5):
        metrics.picked(pick(pool=f"p{number}"))
    assert value(registry, "picks_total", pool="other", variant="other", reason="other") == 5
    assert value(registry, "picks_total", pool="p0", variant="stable", reason="prefix") == 1


def test_in_flight_is_read_when_asked(registry):
    """The values come from the ledger; above the bound endpoints are summed."""
    counts = {f"r{number:05}": 1 for number in range(MAX_SERIES + 3)}
    Metrics(registry, in_flight=lambda: counts, pools=lambda: 2, index_blocks=lambda: 7)
    assert value(registry, "in_flight", endpoint="r00000") == 1
    assert value(registry, "in_flight", endpoint="other") == 3
    counts.clear()
    assert value(registry, "in_flight", endpoint="r00000") is None
    assert value(registry, "pools") == 2
    assert value(registry, "index_blocks") == 7


async def test_the_debug_page(registry):
    """Metrics, state and health over HTTP."""
    metrics = Metrics(registry)
    metrics.refused("saturated")
    metrics.moved()
    ready = [False]
    app = debug_app(metrics, lambda: {"router": {1: {"a"}}}, lambda: ready[0])
    async with TestClient(TestServer(app)) as client:
        page = await client.get("/metrics")
        text = await page.text()
        assert 'tidegate_picker_refusals_total{pool="",reason="saturated"} 1.0' in text
        assert "tidegate_picker_served_elsewhere_total 1.0" in text
        assert (await (await client.get("/debug/state")).json()) == {"router": {"1": "{'a'}"}}
        assert (await client.get("/healthz")).status == 503
        ready[0] = True
        assert (await client.get("/healthz")).status == 200


async def test_decisions_are_explained_newest_first(registry):
    """All sampled ones, or those of one pool."""
    decisions = [{"pool": "a", "n": 1}, {"pool": "b", "n": 2}, {"pool": "a", "n": 3}]
    app = debug_app(Metrics(registry), dict, lambda: True, lambda: decisions)
    async with TestClient(TestServer(app)) as client:
        everything = await (await client.get("/debug/explain")).json()
        of_a = await (await client.get("/debug/explain?pool=a")).json()
    assert [each["n"] for each in everything] == [3, 2, 1]
    assert [each["n"] for each in of_a] == [3, 1]


def test_predicted_and_observed_reuse_by_endpoint(registry):
    """Sent, predicted and reported tokens; an endpoint that reports none has no series."""
    metrics = Metrics(registry, reused=lambda: {"r1": 48.0})
    for name in ("r1", "r2"):
        sent = pick()
        ticket = Ticket(1, EndpointKey(name, 1), "llm", 60.0, 0.0)
        sent.decision = sent.decision.changed(ticket=ticket)
        metrics.picked(sent)
    for name in ("r1", "r2"):
        assert value(registry, "prefix_prompt_tokens_total", endpoint=name) == 100
        assert value(registry, "prefix_predicted_tokens_total", endpoint=name) == 40
    assert value(registry, "prefix_observed_tokens_total", endpoint="r1") == 48
    assert value(registry, "prefix_observed_tokens_total", endpoint="r2") is None
