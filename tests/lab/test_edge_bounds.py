"""The edge under what is too large, too slow or too much, each through a real Envoy."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest

from support.edge_stack import CHAT, GRPC, INFER, EdgeStack, answer, ask, served
from support.sockets import Raw, head
from support.traffic import eventually


@pytest.fixture(scope="module")
async def strict(demo_extra):  # noqa: ARG001 - skips first
    """Run a stack that reads whole bodies, with short times and small bounds."""
    async with EdgeStack(
        listener={"upload_timeout": "2s"},
        routing={"body": "full", "max_body": 700_000},
        bounds={"max_heap_mib": 192, "max_connections": 900},
    ) as stack:
        yield stack


async def test_a_body_that_is_too_large_is_refused_in_the_dialect(strict):
    """413 with OpenAI's object, with Triton's, and as a gRPC status."""
    body = b" " * 800_000
    status, headers, text = await ask(strict, INFER, body=body)
    assert (status, headers["x-tidegate-reason"]) == (413, "too-large")
    assert isinstance(json.loads(text)["error"], str)
    status, _, text = await ask(strict, CHAT, body=body)
    assert (status, json.loads(text)["error"]["code"]) == (413, "too-large")
    async with grpc.aio.insecure_channel(strict.listener) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary(GRPC + "ModelInfer")(body)
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger" in error.value.details()


async def test_what_no_replica_can_serve_is_refused_in_the_dialect(demo_extra):  # noqa: ARG001
    """503 with a reason and a time after which to try again, in each dialect."""
    async with EdgeStack() as stack:
        fleet = stack.first_fleet()
        for pool in fleet["pools"]:
            pool["drop_overload"] = 100
        await stack.apply(fleet)
        wanted = {"x-tidegate-reason": "unavailable", "retry-after": "1"}
        status, headers, text = await ask(stack, INFER, body=b"{}")
        assert (status, wanted.items() <= headers.items()) == (503, True)
        assert isinstance(json.loads(text)["error"], str)
        status, headers, text = await ask(stack, CHAT, body=b'{"model": "vision"}')
        assert (status, wanted.items() <= headers.items()) == (503, True)
        assert json.loads(text)["error"]["type"] == "server_error"
        async with grpc.aio.insecure_channel(stack.listener) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.unary_unary(GRPC + "ModelInfer")(b"\n\x07toy-llm")
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not error.value.details().startswith("{")
        assert stack.seen == []


async def test_an_upload_that_drips_is_ended(strict):
    """A byte now and then keeps a stream from being idle, but not from its bound."""
    async with Raw(strict.listener) as raw:
        await raw.send(head(CHAT, "content-length: 100000"))
        reading = asyncio.create_task(answer(raw))

        async def dripped() -> bool:
            await raw.send(b" ")
            await asyncio.wait({reading}, timeout=0.2)
            return reading.done()

        assert await eventually(dripped)
        status, headers, body = await reading
    assert (status, headers["x-tidegate-reason"]) == (408, "timeout")
    assert json.loads(body)["error"]["code"] == "timeout"


async def test_a_long_answer_is_not_ended(strict):
    """The bound ends with the upload."""
    strict.llm.hold_s = 4.0
    try:
        status, _, _ = await ask(strict, INFER, body=b"{}")
    finally:
        strict.llm.hold_s = 0.0
    assert status == 200


async def test_an_open_stream_without_an_answer_is_not_ended(strict):
    """The first answer of a ModelStreamInfer may come long after its first message."""
    async with grpc.aio.insecure_channel(strict.listener) as channel:
        call = channel.stream_stream(GRPC + "ModelStreamInfer")()
        await call.write(b"\n\x07toy-llm")
        await asyncio.sleep(4.0)
        await call.write(b"\n\x07toy-llm")  # the stand-in answers the second message
        assert await asyncio.wait_for(call.read(), 30) == b""
        await asyncio.sleep(3.0)
        await call.write(b"\n\x07toy-llm")
        assert await asyncio.wait_for(call.read(), 30) == b""
        call.cancel()


async def test_half_uploads_stay_within_the_heap(strict):
    """850 uploads of 512 KiB are twice the bound; Envoy stays within it and serves on."""
    limit = 1.25 * 192 * 2**20 + 80 * 2**20
    body = b"{" + b" " * 2**19
    held: list[Raw] = []
    most = 0

    async def upload() -> None:
        raw = Raw(strict.listener)
        await raw.__aenter__()
        held.append(raw)
        raw.writer.write(head(INFER, "content-length: 690000") + body)

    for _ in range(17):
        await asyncio.gather(*(upload() for _ in range(50)), return_exceptions=True)
        await asyncio.sleep(0.1)
        most = max(most, strict.envoy_rss())
    for raw in held:
        raw.writer.close()
    assert most < limit, f"{most / 2**20:.0f} MiB"
    assert await served(strict)


async def test_connections_are_counted(strict):
    """Beyond the bound a connection is closed at once; the admin page is still there."""
    held: list[Raw] = []
    for _ in range(1000):
        raw = Raw(strict.listener)
        await raw.__aenter__()
        held.append(raw)

    async def closed() -> bool:
        return sum(raw.reader.at_eof() for raw in held) >= 90

    assert await eventually(closed)
    await strict.envoy_page("server_info")
    for raw in held:
        raw.writer.close()
    assert await served(strict)
