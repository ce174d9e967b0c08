"""Failures under traffic that clients must not notice."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial

import pytest

from support.traffic import (
    GENERATE,
    GENERATE_STREAM,
    VISION,
    Traffic,
    eventually,
    fresh_prompt,
    metric,
    vision_body,
)


def generate_body():
    """Return a request that takes a few tens of milliseconds."""
    return {"text_input": fresh_prompt(400), "max_tokens": 10}


@pytest.fixture
async def victim(tritons):
    """Return the name of a replica that the test may kill; restart it afterwards."""
    yield "r1"
    if not tritons.supervisor.running("r1"):
        await tritons.restart("r1")


async def test_a_killed_replica_fails_no_request_and_gets_work_again(http, new_stack, victim):
    """Another replica answers the requests in flight on a killed replica, in each body mode.

    Only answers that it had begun end with it, at most one of each worker. Once restarted, it gets
    requests again.
    """
    stacks = [await new_stack(body=body) for body in ("none", "peek", "full")]
    dead = next(r.http for r in stacks[0].replicas if r.name == victim)
    async with AsyncExitStack() as exit_:

        async def load(path, body, workers):
            traffic = [Traffic(http, s.http_url + path, body, workers, dies=dead) for s in stacks]
            return [await exit_.enter_async_context(each) for each in traffic]

        generations = await load(GENERATE, generate_body, 3)
        images = await load(VISION, vision_body, 1)
        for each in generations:
            assert await eventually(partial(_served, each, dead))
        await stacks[0].kill_replica(victim)
        await asyncio.gather(*map(_slowed, (*generations, *images)))
        await stacks[0].restart_replica(victim)
        for each in generations:
            each.served.clear()
            assert await eventually(partial(_served, each, dead))
    for each in (*generations, *images):
        assert not each.failures
        assert each.cut <= each.workers


async def _slowed(traffic: Traffic) -> None:
    """Wait for some answers; then leave the processors to the Triton that starts."""
    await traffic.more(25)
    traffic.pause_s = 0.2


async def _served(traffic: Traffic, address: str) -> bool:
    return traffic.served[address] > 0


async def test_an_answer_that_has_begun_is_not_repeated(http, new_stack, victim):
    """A stream that breaks after its start ends; it is not retried."""
    stack = await new_stack()
    on_victim = None
    while on_victim is None:
        body = {"text_input": fresh_prompt(64), "max_tokens": 4000, "stream": True}
        answer = await http.post(stack.http_url + GENERATE_STREAM, json=body)
        await answer.content.readline()
        served = answer.headers["x-tidegate-served-by"]
        if served == next(r.http for r in stack.replicas if r.name == victim):
            on_victim = answer
        else:
            answer.close()
    await stack.kill_replica(victim)
    with pytest.raises(Exception, match=r"(?i)payload|closed|transfer|reset"):
        await asyncio.wait_for(on_victim.read(), 60)

    async def empty() -> bool:
        return await metric(http, stack.picker_metrics, "tidegate_picker_in_flight") == 0

    assert await eventually(empty)


async def test_a_killed_picker_fails_no_request(http, new_stack):
    """Envoy balances without a picker, and uses the picker again after its restart."""
    stack = await new_stack()
    async with Traffic(http, stack.http_url + GENERATE, generate_body, workers=8) as traffic:
        await stack.kill_picker()
        await traffic.more(200)
        await stack.start_picker()

        async def picks() -> bool:
            return await metric(http, stack.picker_metrics, "tidegate_picker_picks_total") > 20

        assert await eventually(picks)
        await traffic.more(50)
    assert not traffic.failures


async def test_without_a_picker_the_default_pool_serves_grpc_calls(new_stack):
    """Without a picker, gRPC calls go to the default pool."""
    import tritonclient.grpc.aio as triton_grpc  # noqa: PLC0415 - keeps the HTTP tests light

    from support.traffic import vision_inputs  # noqa: PLC0415 - as above

    def vision_first(fleet):
        for pool in fleet["pools"]:
            pool["default"] = pool["name"] == "vision"

    stack = await new_stack(fleet=vision_first)
    await stack.kill_picker()
    async with triton_grpc.InferenceServerClient(stack.grpc_address) as client:
        for _ in range(10):
            result = await client.infer("vision", vision_inputs())
            assert result.as_numpy("scores").shape[-1] == 4
