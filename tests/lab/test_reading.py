"""Routing by the body through a real Envoy: calls about a model, long chats, adapters."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
import tritonclient.grpc.aio as triton_grpc
from aiohttp import web

from support.traffic import metric
from tidegate.stack.local import LocalStack
from tidegate.stack.processes.ports import HeldPorts


@pytest.fixture(scope="module")
async def stack(new_module_stack):
    """Run a stack without a gateway, where a replica answers about its models."""
    return await new_module_stack()


async def test_calls_about_a_model_reach_its_replicas(http, stack):
    """Metadata, config, statistics and readiness of a version come from a replica that serves it.

    Only the canary has version 2 of the language model; any other replica would refuse.
    """
    async with triton_grpc.InferenceServerClient(stack.grpc_address) as client:
        for _ in range(4):
            metadata = await client.get_model_metadata("toy-llm", "2")
            assert (metadata.name, list(metadata.versions)) == ("toy-llm", ["2"])
            config = await client.get_model_config("toy-llm", "2")
            assert config.config.name == "toy-llm"
            assert await client.is_model_ready("toy-llm", "2")
            statistics = await client.get_inference_statistics("toy-llm", "2")
            assert statistics.model_stats[0].version == "2"
        picked = {"pool": "vision"}
        before = await metric(http, stack.picker_metrics, "tidegate_picker_picks_total", **picked)
        assert (await client.get_model_metadata("vision")).name == "vision"
        after = await metric(http, stack.picker_metrics, "tidegate_picker_picks_total", **picked)
        assert after == before + 1
        assert not await client.is_model_ready("missing")


@pytest.fixture
async def openai_stack(new_stack) -> AsyncIterator[LocalStack]:
    """Run two more pools with one OpenAI replica each, whose responses name the pool."""
    with HeldPorts() as ports:
        runners: list[web.AppRunner] = []
        pools: list[dict[str, object]] = []
        for name in ("small", "large"):
            address = ports.address()
            runners.append(await _replica(name, address))
            pools.append(
                {
                    "name": name,
                    "default": name == "small",
                    "match": {"models": [f"{name}-model"], "paths": ["/v1/chat/completions"]},
                    "endpoints": [{"http": address}],
                    "health": {"path": "/health", "interval": "1s"},
                }
            )
        yield await new_stack(models=("vision",), fleet=lambda fleet: fleet["pools"].extend(pools))
        for runner in runners:
            await runner.cleanup()


async def _replica(pool: str, address: str) -> web.AppRunner:
    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        message = {"role": "assistant", "content": f"{pool} {len(body['messages'])}"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        said = {"id": "x", "object": "chat.completion", "created": 1, "model": body["model"]}
        return web.json_response({**said, "choices": [choice]})

    async def ready(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(client_max_size=2**23)
    app.router.add_post("/v1/chat/completions", answer)
    app.router.add_get("/health", ready)
    runner = web.AppRunner(app)
    await runner.setup()
    host, _, port = address.rpartition(":")
    await web.TCPSite(runner, host, int(port)).start()
    return runner


async def test_the_openai_client_reaches_the_pool_of_its_model(openai_stack):
    """The model selects the pool, also if it is an adapter.

    The client writes it behind the messages: in a long chat, far behind what ``peek`` would read.
    """
    url = openai_stack.http_url + "/v1"
    async with openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0) as client:
        for model, pool in (("small-model", "small"), ("large-model:sql", "large")):
            for turns in (1, 2000):
                messages = [{"role": "user", "content": "tides and gates " * 20}] * turns
                answer = await client.chat.completions.create(model=model, messages=messages)
                assert answer.choices[0].message.content == f"{pool} {turns}"
                assert answer.model == model
