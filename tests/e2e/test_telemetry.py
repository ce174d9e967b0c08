"""What pickers learn from real Tritons: by pages, by a reporter, and where there is nothing."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from support.traffic import (
    GENERATE,
    GENERATE_STREAM,
    Traffic,
    eventually,
    fresh_prompt,
    metric,
    picker_state,
)
from tidegate.reporter.run import Options, Reporter

STALE = "tidegate_picker_telemetry_stale_endpoints"


async def readings(http, stack, name):
    """Return what the picker knows of a replica, by model."""
    state = await picker_state(http, stack)
    endpoint = state["router"]["pools"]["llm"]["endpoints"][name]
    return {each["model"]: each for each in endpoint["readings"]}


@contextlib.asynccontextmanager
async def requests_on(http, replica, count):
    """Keep so many generations open on a replica, past Envoy and picker."""
    answers = []
    try:
        for _ in range(count):
            body = {"text_input": fresh_prompt(), "max_tokens": 4000, "stream": True}
            answer = await http.post(replica.http_url + GENERATE_STREAM, json=body)
            await answer.content.readline()
            answers.append(answer)
        yield
    finally:
        for answer in answers:
            answer.close()


@pytest.mark.parametrize("pushed", [False, True], ids=["scraped", "pushed"])
async def test_readings_are_what_the_server_does(http, stack, tritons, pushed):
    """Requests that others sent show in the model's own reading, and end there when they end."""
    replica = tritons.replicas[0]
    reporter = None
    if pushed:
        options = Options(replica.name, replica.metrics_url, (stack.addresses.picker,))
        reporter = asyncio.create_task(Reporter(options).run())

    async def shows(count):
        known = await readings(http, stack, replica.name)
        llm = known.get("toy-llm", {})
        return (
            llm.get("running") is not None
            and llm["running"] + llm["queued"] == count
            and (count == 0 or llm["kv_used"] > 0)
            and known["vision"]["queued"] == 0
            and known["vision"]["kv_used"] is None
        )

    try:
        async with requests_on(http, replica, 3):
            assert await eventually(lambda: shows(3), 10)
        assert await eventually(lambda: shows(0), 10)
        if pushed:
            telemetry = (await picker_state(http, stack))["telemetry"]
            assert telemetry["push"]["endpoints"] == 1
            assert "push" in telemetry["ages_s"][replica.name]
    finally:
        if reporter is not None:
            reporter.cancel()
            await asyncio.gather(reporter, return_exceptions=True)


async def test_without_any_telemetry_routing_goes_on(http, new_stack):
    """Where no page answers, the picker says so, and every request is served and spread."""

    def nowhere(fleet):
        for pool in fleet["pools"]:
            for endpoint in pool["endpoints"]:
                endpoint["metrics"] = f"http://127.0.0.1:1/{endpoint['id']}"

    blind = await new_stack(fleet=nowhere)

    def body():
        return {"text_input": fresh_prompt(64), "max_tokens": 2}

    async with Traffic(http, blind.http_url + GENERATE, body) as traffic:
        await traffic.more(300)
    assert traffic.failures == []
    assert len(traffic.served) >= 2

    async def says_so():
        return await metric(http, blind.picker_metrics, STALE) == 3

    assert await eventually(says_so, 10)
