"""Telemetry of real Triton replicas: scraped, pushed by a reporter, and missing."""

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
    vision_body,
)
from tidegate.reporter.run import MetricsReporter, ReporterOptions
from tidegate.stack.tritons.fleet import Tritons

VISION = "/v2/models/vision/infer"
STALE = "tidegate_picker_telemetry_stale_endpoints"


async def readings(http, stack, name):
    """Return the picker's readings of a replica, by model."""
    state = await picker_state(http, stack)
    endpoint = state["router"]["pools"]["llm"]["endpoints"][name]
    return {each["model"]: each for each in endpoint["readings"]}


@contextlib.asynccontextmanager
async def requests_on(http, replica, count):
    """Keep ``count`` generations open on a replica, bypassing Envoy and the picker."""
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
    """Requests of other clients appear in the model's reading until they end."""
    replica = tritons.replicas[0]
    reporter = None
    if pushed:
        options = ReporterOptions(replica.name, replica.metrics_url, (stack.addresses.picker,))
        reporter = asyncio.create_task(MetricsReporter(options).run())

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

    async def seen() -> bool:
        # The requests last two seconds: where they end before they are seen, there are others.
        async with requests_on(http, replica, 3):
            return await eventually(lambda: shows(3), 3)

    try:
        assert await eventually(seen)
        assert await eventually(lambda: shows(0))
        if pushed:
            telemetry = (await picker_state(http, stack))["telemetry"]
            assert telemetry["push"]["endpoints"] == 1
            assert "push" in telemetry["ages_s"][replica.name]
    finally:
        if reporter is not None:
            reporter.cancel()
            await asyncio.gather(reporter, return_exceptions=True)


async def test_counts_are_exact_and_each_model_has_its_own(http, new_stack):
    """Of 12 requests one runs and 11 wait; three generations of another model count separately."""
    async with Tritons(1, env={"VISION_BATCH_MS": "2000"}) as slow:
        stack = await new_stack(tritons=slow)
        replica = slow.replicas[0]

        async def shows(**expected):
            known = await readings(http, stack, replica.name)
            return all(
                model in known and (known[model]["queued"], known[model]["running"]) == numbers
                for model, numbers in expected.items()
            )

        async def infer():
            async with http.post(replica.http_url + VISION, json=vision_body()) as answer:
                return answer.status

        async def seen() -> bool:
            expected = {"vision": (11, None), "toy-llm": (0, 3)}
            async with requests_on(http, replica, 3):
                first = asyncio.create_task(infer())
                await asyncio.sleep(0.2)  # a separate batch
                others = [asyncio.create_task(infer()) for _ in range(11)]
                waiting = await eventually(lambda: shows(**expected), 1.7)
                assert await first == 200
                # The next batch takes eight of the waiting requests.
                expected["vision"] = (3, None)
                fewer = waiting and await eventually(lambda: shows(**expected), 2.0)
            if fewer:
                for task in others:
                    task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            return fewer

        # What is seen lasts two seconds: where a look is late, or the waiting requests formed two
        # batches, it is done again.
        assert await eventually(seen)


async def test_without_any_telemetry_routing_goes_on(http, lend_once):
    """Without metrics pages, the picker reports it, and requests are served and spread."""

    def nowhere(fleet):
        for pool in fleet["pools"]:
            for endpoint in pool["endpoints"]:
                endpoint["metrics"] = f"http://127.0.0.1:1/{endpoint['id']}"

    blind = await lend_once(fleet=nowhere)

    def body():
        return {"text_input": fresh_prompt(64), "max_tokens": 2}

    async with Traffic(http, blind.http_url + GENERATE, body, pause_s=0.02) as traffic:
        await traffic.more(300)
    assert traffic.failures == []
    assert len(traffic.served) >= 2

    async def says_so():
        return await metric(http, blind.picker_metrics, STALE) == 3

    assert await eventually(says_so)
