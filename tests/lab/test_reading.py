"""Without a gateway: calls about a model, single replicas, and, by the body, chats and adapters."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
import tritonclient.grpc.aio as triton_grpc
from aiohttp import web

from support.sites import end
from support.traffic import metric
from tidegate.stack.local import LocalStack
from tidegate.stack.processes.ports import HeldPorts

INFER = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture(scope="module")
async def stack(lend):
    """Lend the shared stack without its gateway, so that a replica answers about its models."""
    return await lend(gateway=False)


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


async def test_a_malformed_message_has_tritons_code(stack):
    """A client sees the same status whether the gateway or Triton refuses its bytes."""
    codes = []
    for address in (stack.replicas[0].grpc, stack.grpc_address):
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(
                    b"\xff\xff\xff\xff"
                )
            codes.append(error.value.code())
    assert codes[0] is codes[1]


async def test_questions_are_answered_and_single_replicas_protected(http, stack):
    """What tritonclient asks about a served model works; its trace settings are refused alike."""
    for path in ("", "/ready", "/config", "/stats", "/versions/1", "/versions/1/config"):
        async with http.get(f"{stack.http_url}/v2/models/vision{path}") as got:
            assert got.status == 200
    for path in ("/v2/models/vision/trace/setting", "/v2/trace/setting", "/v2/logging"):
        async with http.get(stack.http_url + path) as got:
            assert got.status == 403
    async with triton_grpc.InferenceServerClient(stack.grpc_address) as client:
        assert (await client.get_model_config("vision")).config.name == "vision"
        for call in (client.get_trace_settings("vision"), client.get_log_settings()):
            with pytest.raises(Exception, match="one replica"):
                await call


@pytest.fixture
async def openai_stack(lend_once) -> AsyncIterator[LocalStack]:
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
        yield await lend_once(models=("vision",), fleet=lambda fleet: fleet["pools"].extend(pools))
        for runner in runners:
            await end(runner)


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
    import openai  # noqa: PLC0415 - it takes a second, in each worker

    url = openai_stack.http_url + "/v1"
    async with openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0) as client:
        for model, pool in (("small-model", "small"), ("large-model:sql", "large")):
            for turns in (1, 400):
                messages = [{"role": "user", "content": "tides and gates " * 20}] * turns
                answer = await client.chat.completions.create(model=model, messages=messages)
                assert answer.choices[0].message.content == f"{pool} {turns}"
                assert answer.model == model
