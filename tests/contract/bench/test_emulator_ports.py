"""The ports of an emulated replica, used like clients and routers do."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from bench.emulator import kserve
from bench.emulator.http import ControlPort, DataPort
from bench.emulator.replica import EmulatedReplica
from bench.engine import EngineConfig
from bench.load.client import LoadClient
from bench.load.plan import LoadPlan
from bench.suites.workloads import chat, http_request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.emulator.replica import ResponseListener

FAST = 1_000.0


@asynccontextmanager
async def ports(*, early_headers: bool = False) -> AsyncIterator[tuple[EmulatedReplica, str, str]]:
    """Serve one replica; yields it with its data and its control address."""
    replica = EmulatedReplica(EngineConfig(), FAST)
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(port.protocol, "127.0.0.1", 0)
        for port in (DataPort(replica, "vllm", early_headers=early_headers), ControlPort(replica))
    ]
    try:
        data, control = (f"127.0.0.1:{each.sockets[0].getsockname()[1]}" for each in servers)
        yield replica, data, control
    finally:
        for each in servers:
            each.close()


@pytest.mark.usefixtures("_counted_time")
async def test_a_streamed_chat_ends_as_it_should() -> None:
    """Several streams on one connection are complete to the last event."""
    async with ports() as (replica, data, _):
        sent = http_request("/v1/chat/completions", chat("hello. Answer in 5 tokens."))
        plan = LoadPlan(data, [0], connections=1, seconds=0.05, requests=[sent], ends_with="[DONE]")
        results = await LoadClient(plan).run()
        assert len(results.outcome) > 1
        assert replica.counters.generated == 5 * replica.counters.finished


class _Held(EmulatedReplica):
    """A replica that keeps its listener until the test calls it."""

    def submit(self, prompt: bytes, output: int, listener: ResponseListener) -> int:  # noqa: ARG002 - the engine's
        self.listener = listener
        self.submitted.set()
        return 0

    def __init__(self) -> None:
        super().__init__(EngineConfig(), FAST)
        self.submitted = asyncio.Event()


@pytest.mark.parametrize("early", [False, True])
async def test_headers_of_a_stream_come_at_once_or_with_the_first_token(early: bool) -> None:
    """VLLM and all on uvicorn send them at once, Triton with the first token."""
    replica = _Held()
    port = DataPort(replica, "vllm", early_headers=early)
    server = await asyncio.get_running_loop().create_server(port.protocol, "127.0.0.1", 0)
    host, number = server.sockets[0].getsockname()[:2]
    reader, writer = await asyncio.open_connection(host, number)
    body = chat("hello. Answer in 5 tokens.")
    head = f"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await replica.submitted.wait()
    if early:
        assert b" 200 OK" in await reader.readuntil(b"\r\n\r\n")
    replica.listener.first()
    replica.listener.done(1)
    rest = await reader.readuntil(b"\r\n0\r\n\r\n")
    assert rest.count(b" 200 OK") == (not early)
    assert b"[DONE]" in rest
    writer.close()
    server.close()


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/chat/completions", chat("hi", stream=False), "chat.completion"),
        ("/v1/completions", b'{"prompt":"hi"}', "text_completion"),
        ("/v2/models/toy-llm/generate", b'{"text_input":"hi"}', "text_output"),
        ("/v2/models/toy-llm/generate_stream", b'{"text_input":"hi"}', "data: {"),
    ],
)
async def test_each_dialect_is_answered(path: str, body: bytes, expected: str) -> None:
    """Streams are events, the others one JSON object."""
    async with (
        ports() as (_, data, _),
        aiohttp.ClientSession() as session,
        session.post(f"http://{data}{path}", data=body) as answer,
    ):
        assert answer.status == 200
        assert expected in await answer.text()


@pytest.mark.parametrize(
    "path",
    ["/health", "/v1/models", "/get_model_info", "/v2/health/ready", "/metrics"],
)
async def test_what_routers_poll_is_there(path: str) -> None:
    """Health, models and metrics answer 200."""
    async with (
        ports() as (_, data, _),
        aiohttp.ClientSession() as session,
        session.get(f"http://{data}{path}") as answer,
    ):
        assert answer.status == 200


async def test_bad_requests_are_refused_and_the_connection_goes_on() -> None:
    """An invalid body is 400 and an unknown path 404; neither reaches the replica."""
    async with ports() as (replica, data, _), aiohttp.ClientSession() as session:
        for path, status in (("/v1/completions", 400), ("/nothing", 404)):
            async with session.post(f"http://{data}{path}", data=b"[]") as answer:
                assert answer.status == status
        assert replica.counters.requests == 0


async def test_the_control_port_tells_and_resets() -> None:
    """The control port returns counters and resets them; the data port has no such path."""
    async with ports() as (_, data, control), aiohttp.ClientSession() as session:
        body = b'{"prompt":"hi"}'
        async with session.post(f"http://{data}/v1/completions", data=body) as answer:
            await answer.read()
        for path, expected in (("stats", 1), ("reset", 0)):
            async with session.get(f"http://{control}/{path}") as answer:
                assert (await answer.json())["requests"] == expected
        async with session.get(f"http://{data}/stats") as answer:
            assert answer.status == 404


async def test_kserve_answers_whole_and_in_pieces() -> None:
    """``ModelInfer`` answers once, ``ModelStreamInfer`` ends with a message marked final."""
    replica = EmulatedReplica(EngineConfig(), FAST)
    server = grpc.aio.server()
    servicer = kserve.Servicer(replica)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    request = service_pb2.ModelInferRequest(model_name="toy-llm", id="7")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    text = b"hello. Answer in 3 tokens."
    request.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            whole = await stub.ModelInfer(request)
            assert whole.id == "7"
            assert whole.raw_output_contents
            pieces = [each.infer_response async for each in stub.ModelStreamInfer(iter([request]))]
            final = [each.parameters["triton_final_response"].bool_param for each in pieces]
            assert final == [False, True]
            assert replica.counters.generated == 6
            del request.raw_input_contents[:]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.ModelInfer(request)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    finally:
        await server.stop(0)
