"""Every form of a request, from a real client through a real Envoy to a real Triton."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import numpy as np
import pytest
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from aiohttp import web

from support.sites import end
from support.traffic import (
    COUNTER,
    GENERATE,
    GENERATE_STREAM,
    VISION,
    counter_body,
    fresh_prompt,
    llm_inputs,
    metric,
    vision_body,
    vision_inputs,
)
from tidegate.stack.local import LocalStack
from tidegate.stack.processes.ports import HeldPorts
from tidegate_api.names import SERVED_BY_HEADER


@pytest.fixture
async def grpc_client(stack):
    """Connect tritonclient's gRPC client to Envoy."""
    async with triton_grpc.InferenceServerClient(stack.grpc_address) as client:
        yield client


@pytest.fixture
async def http_client(stack):
    """Connect tritonclient's HTTP client to Envoy."""
    client = triton_http.InferenceServerClient(stack.http_address)
    yield client
    await client.close()


async def picks(http, stack, **labels) -> float:
    """Return the number of picks."""
    return await metric(http, stack.picker_metrics, "tidegate_picker_picks_total", **labels)


@pytest.fixture(scope="module")
async def stack(lend):
    """Lend the shared stack without its gateway, so that it refuses and answers by itself."""
    return await lend(gateway=False)


async def test_http_infer_json(http, stack):
    """KServe HTTP infer as JSON is picked and answered."""
    before = await picks(http, stack, pool="vision")
    async with http.post(stack.http_url + VISION, json=vision_body()) as answer:
        assert answer.status == 200
        assert [o["name"] for o in (await answer.json())["outputs"]].count("scores") == 1
        assert answer.headers[SERVED_BY_HEADER] in {r.http for r in stack.replicas}
    assert await picks(http, stack, pool="vision") == before + 1


async def test_http_infer_binary(http, stack, http_client):
    """KServe HTTP infer with binary tensors, as tritonclient sends it."""
    before = await picks(http, stack, pool="vision")
    image = triton_http.InferInput("image", [1, 3, 32, 32], "FP32")
    image.set_data_from_numpy(np.ones((1, 3, 32, 32), dtype=np.float32), binary_data=True)
    result = await http_client.infer("vision", [image])
    assert result.as_numpy("scores").shape[-1] == 4
    assert await picks(http, stack, pool="vision") == before + 1


async def test_http_infer_with_the_version_in_the_path(http, stack):
    """A version in the path selects the variant that serves it, even with weight 0."""
    canary = {r.http for r in stack.replicas if r.variant == "canary"}
    path = "/v2/models/toy-llm/versions/2/generate"
    for _ in range(5):
        body = {"text_input": fresh_prompt(), "max_tokens": 2}
        async with http.post(stack.http_url + path, json=body) as answer:
            assert answer.status == 200
            assert (await answer.json(content_type=None))["text_output"].startswith("v2")
            assert answer.headers[SERVED_BY_HEADER] in canary


async def test_generate(http, stack):
    """A repeated generate request reaches the replica that cached the prompt."""
    body = {"text_input": fresh_prompt(2000), "max_tokens": 2}
    served, cached = [], []
    for _ in range(3):
        async with http.post(stack.http_url + GENERATE, json=body) as answer:
            assert answer.status == 200
            cached.append((await answer.json(content_type=None))["cached_tokens"])
            served.append(answer.headers[SERVED_BY_HEADER])
    assert len(set(served)) == 1
    assert cached[0] == 0
    assert min(cached[1:]) > 400


async def test_generate_stream(http, stack):
    """Server-sent events arrive one by one."""
    body = {"text_input": fresh_prompt(), "max_tokens": 5, "stream": True}
    async with http.post(stack.http_url + GENERATE_STREAM, json=body) as answer:
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [
            json.loads(line[5:]) async for line in answer.content if line.startswith(b"data:")
        ]
    assert len(events) == 5


async def test_grpc_infer_whose_body_names_another_pool(http, stack, grpc_client):
    """ModelInfer reaches the pool of its model, not Envoy's default pool for gRPC."""
    before = await picks(http, stack, pool="vision")
    for _ in range(4):
        result = await grpc_client.infer("vision", vision_inputs())
        assert result.as_numpy("scores").shape[-1] == 4
    assert await picks(http, stack, pool="vision") == before + 4


async def test_grpc_infer_of_many_tensors(http, stack, grpc_client):
    """The model is read from a message larger than the picker's limit."""
    before = await picks(http, stack, pool="vision")
    image = triton_grpc.InferInput("image", [8, 3, 32, 32], "FP32")
    image.set_data_from_numpy(np.zeros((8, 3, 32, 32), dtype=np.float32))
    for _ in range(2):
        result = await grpc_client.infer("vision", [image], request_id="big" * 100_000)
        assert result.as_numpy("scores").shape[0] == 8
    assert await picks(http, stack, pool="vision") == before + 2


async def test_grpc_stream(http, stack, grpc_client):
    """ModelStreamInfer is picked by its metadata and answers token by token."""
    before = await picks(http, stack, pool="llm")

    async def requests() -> AsyncIterator[dict[str, object]]:
        yield {"model_name": "toy-llm", "inputs": llm_inputs(fresh_prompt(), 4)}

    answers = grpc_client.stream_infer(requests(), headers={"tidegate-model": "toy-llm"})
    tokens = []
    async for result, error in answers:
        assert error is None
        tokens.append(result.as_numpy("text_output")[0])
        if len(tokens) == 4:
            break
    assert await picks(http, stack, pool="llm") == before + 1


async def test_grpc_stream_with_several_requests(grpc_client):
    """A bidirectional stream stays usable between requests."""

    async def requests() -> AsyncIterator[dict[str, object]]:
        for _ in range(3):
            yield {"model_name": "toy-llm", "inputs": llm_inputs(fresh_prompt(), 2)}

    count = 0
    async for _, error in grpc_client.stream_infer(requests()):
        assert error is None
        count += 1
        if count == 6:
            break
    assert count == 6


async def test_http_sequence_with_string_and_integer_ids(http, stack):
    """Sequences over HTTP infer: the integer 77 and the string "77" are two sequences."""
    totals = []
    for sequence, value in ((77, 1), ("77", 10), (77, 2), ("77", 20)):
        start = value in {1, 10}
        body = counter_body(value, sequence, sequence_start=start, sequence_end=not start)
        async with http.post(stack.http_url + COUNTER, json=body) as answer:
            assert answer.status == 200, await answer.text()
            outputs = {o["name"]: o["data"] for o in (await answer.json())["outputs"]}
            totals.append(outputs["total"][0])
    assert totals == [1, 10, 3, 30]


async def test_metadata_and_health_are_answered(grpc_client, http_client):
    """Calls other than inference go to a replica that serves the model."""
    assert await http_client.is_server_live()
    assert await http_client.is_server_ready()
    assert await http_client.is_model_ready("vision")
    assert (await http_client.get_model_metadata("toy-llm"))["name"] == "toy-llm"
    assert await grpc_client.is_server_live()
    assert await grpc_client.is_server_ready()
    assert (await grpc_client.get_server_metadata()).name == "triton"


async def test_repository_calls_are_refused(http, stack):
    """A load call would change an arbitrary replica, so it is refused with a reason."""
    url = f"{stack.http_url}/v2/repository/models/vision/unload"
    async with http.post(url, json={}) as answer:
        assert answer.status == 403
        assert "one replica" in (await answer.json())["error"]


@pytest.fixture(scope="module")
async def openai_stack(lend) -> AsyncIterator[tuple[LocalStack, list[str]]]:
    """Run a stack with two pools of OpenAI replicas, which Triton 2.51 does not provide."""
    with HeldPorts() as ports:
        addresses = [ports.address() for _ in range(4)]
        runners = []
        for address in addresses:
            app = web.Application()

            async def answer(request: web.Request, address: str = address) -> web.Response:
                body = await request.json()
                return web.json_response({"model": body["model"], "by": address})

            async def ready(_: web.Request) -> web.Response:
                return web.Response()

            app.router.add_post("/v1/{kind:.*}", answer)
            app.router.add_get("/health", ready)
            runner = web.AppRunner(app)
            await runner.setup()
            host, _, port = address.rpartition(":")
            await web.TCPSite(runner, host, int(port)).start()
            runners.append(runner)
        paths = ["/v1/completions", "/v1/chat/completions"]

        def add_pools(fleet):
            for index, name in enumerate(("small", "large")):
                fleet["pools"].append(
                    {
                        "name": name,
                        "default": name == "small",
                        "match": {"models": [f"{name}-model"], "paths": paths},
                        "endpoints": [{"http": a} for a in addresses[2 * index : 2 * index + 2]],
                        "health": {"path": "/health", "interval": "1s"},
                        "routing": {"block_chars": 64},
                    }
                )

        yield await lend(fleet=add_pools, gateway=False), addresses
        for runner in runners:
            await end(runner)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "tell me of tides and gates " * 20}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "tell me of tides and gates " * 20}]},
        ),
    ],
)
async def test_openai_bodies_name_their_pool(http, openai_stack, path, body):
    """Two pools share a path; each request reaches the pool of its model, with affinity."""
    stack, addresses = openai_stack
    for name, own in (("small-model", addresses[:2]), ("large-model", addresses[2:])):
        served = set()
        for _ in range(6):
            async with http.post(stack.http_url + path, json={"model": name, **body}) as answer:
                assert answer.status == 200, await answer.text()
                said = await answer.json()
                assert said["model"] == name
                served.add(said["by"])
        assert len(served) == 1
        assert served <= set(own)


async def test_openai_body_without_a_known_model_is_refused(http, openai_stack):
    """The picker refuses an unreadable body or an unknown model."""
    stack, _ = openai_stack
    url = stack.http_url + "/v1/completions"
    async with http.post(url, json={"model": "missing", "prompt": "x"}) as answer:
        assert answer.status == 404
        assert (await answer.json())["error"]["message"]
        assert answer.headers["x-tidegate-reason"] == "unknown-model"
    async with http.post(url, data=b'{"model": nonsense') as answer:
        assert answer.status == 400
        assert answer.headers["x-tidegate-reason"] == "bad-request"


async def test_a_client_cannot_choose_its_endpoint(http, stack):
    """A spoofed destination or control header has no effect."""
    canary = next(r.http for r in stack.replicas if r.variant == "canary")
    spoof = {
        "x-gateway-destination-endpoint": canary,
        "x-tidegate-pool": "llm",
        "x-tidegate-variant": "canary",
    }
    for _ in range(5):
        body = {"text_input": fresh_prompt(), "max_tokens": 1}
        async with http.post(stack.http_url + GENERATE, json=body, headers=spoof) as answer:
            assert answer.status == 200
            assert answer.headers[SERVED_BY_HEADER] != canary


async def test_http11_chunked_upload(http, stack):
    """A body of unknown length is read like any other."""

    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"text_input": "'
        yield fresh_prompt(1000).encode()
        yield b'", "max_tokens": 1}'

    async with http.post(stack.http_url + GENERATE, data=chunks()) as answer:
        assert answer.status == 200


async def test_unknown_model_is_a_clear_404(http, stack):
    """A path that no pool serves returns 404 in Triton's format."""
    async with http.post(stack.http_url + "/v2/models/missing/infer", json={}) as answer:
        assert answer.status == 404
        said = json.loads(await answer.text())["error"]
    assert said.startswith("Request for unknown model: 'missing' ")
