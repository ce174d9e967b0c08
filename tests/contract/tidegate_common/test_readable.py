"""Calls whose bytes are no message."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from tidegate_common.readable import REASON, ReadableServer

REQUEST = health_pb2.HealthCheckRequest
SOUND, BAD = REQUEST(service="here").SerializeToString(), b"\x0a\xff"


async def unary(request: Any, _: Any) -> bytes:
    """Answer one message."""
    return bytes(request.service, "utf-8")


async def generated(request: Any, _: Any) -> Any:
    """Answer one message with two."""
    yield bytes(request.service, "utf-8")
    yield b"again"


async def iterated(requests: Any, _: Any) -> bytes:
    """Read all messages as an iterator."""
    return b",".join([bytes(each.service, "utf-8") async for each in requests])


async def read(_: Any, context: Any) -> None:
    """Read all messages from the context; its other methods are there."""
    assert context.peer()
    while (each := await context.read()) is not grpc.aio.EOF:
        await context.write(bytes(each.service, "utf-8"))


@pytest.fixture
async def channel():
    """Serve one handler of each kind."""
    server = grpc.aio.server()
    handlers = {
        "unary": grpc.unary_unary_rpc_method_handler(unary, REQUEST.FromString),
        "generated": grpc.unary_stream_rpc_method_handler(generated, REQUEST.FromString),
        "iterated": grpc.stream_unary_rpc_method_handler(iterated, REQUEST.FromString),
        "read": grpc.stream_stream_rpc_method_handler(read, REQUEST.FromString),
        "raw": grpc.unary_unary_rpc_method_handler(raw),
    }
    generic = grpc.method_handlers_generic_handler("test", handlers)
    ReadableServer(server).add_generic_rpc_handlers((generic,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as made:
        yield made
    await server.stop(0)


async def raw(request: bytes, _: Any) -> bytes:
    """Answer bytes of which nothing is read."""
    return request


async def answers(channel: grpc.aio.Channel, method: str, sent: list[bytes]) -> list[bytes]:
    """Return the answers to messages."""
    call: Any = channel.stream_stream(f"/test/{method}")()
    for each in sent:
        await call.write(each)
    await call.done_writing()
    return [each async for each in call]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("unary", [b"here"]),
        ("generated", [b"here", b"again"]),
        ("iterated", [b"here"]),
        ("read", [b"here"]),
    ],
)
async def test_a_message_is_answered(channel, method: str, expected: list[bytes]) -> None:
    """As without the wrapper."""
    assert await answers(channel, method, [SOUND]) == expected


@pytest.mark.parametrize("method", ["unary", "generated", "iterated", "read"])
async def test_bytes_that_are_no_message_are_refused(channel, method: str, caplog) -> None:
    """The caller learns that it is its own fault, and the log has no traceback."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answers(channel, method, [BAD])
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == REASON
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("method", ["iterated", "read"])
async def test_a_later_message_of_a_stream_is_refused(channel, method: str) -> None:
    """What came before it was read."""
    with pytest.raises(grpc.aio.AioRpcError, match=REASON):
        await answers(channel, method, [SOUND, BAD])


async def test_a_handler_that_takes_bytes_gets_them(channel) -> None:
    """It judges them by itself."""
    assert await answers(channel, "raw", [BAD]) == [BAD]


async def test_an_unknown_method_stays_unknown(channel) -> None:
    """The server says so."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answers(channel, "none", [SOUND])
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
