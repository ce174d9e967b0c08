"""How exchanges of the gRPC service end: cancelled, stopped, and after faults."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ext_proc.routing.values.ticket import Outcome
from ext_proc.server.service import NEVER_S
from support.peer import Peer
from support.streams import PROMPT, Messages, llm, router

pytestmark = pytest.mark.usefixtures("transport")


async def test_cancelled_after_the_decision():
    """Envoy cancels a stream when it needs nothing more: that is a normal end."""
    async with Peer(router(llm())) as peer:
        call, _ = await peer.talk(Messages().head().body(PROMPT))
        call.cancel()
        await peer.settled(Outcome.DONE)
        assert peer.counted("errors_total", kind="internal") is None


async def test_cancelled_before_the_decision():
    """A client that disconnects while the body is awaited costs nothing."""
    async with Peer(router(llm())) as peer:
        call, _ = await peer.talk(Messages().head())
        call.cancel()
        async with asyncio.timeout(60):
            while peer.counted("open_streams"):  # noqa: ASYNC110 - no event to await
                await asyncio.sleep(0)
        assert not sum(peer.router.ledger.outcomes.values())


async def test_a_stop_settles_open_streams():
    """Streams still open after the grace end, and their tickets settle."""
    async with Peer(router(llm())) as peer:
        await peer.talk(Messages().head().body(PROMPT))
        await peer.server.stop(0)
        await peer.settled(Outcome.SHUTDOWN)


async def test_a_stop_waits_for_exchanges_only():
    """An open health watch, which the proxy never ends, does not extend the stop."""
    async with Peer(router(llm())) as peer:
        watch = health_pb2_grpc.HealthStub(peer.channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        call, _ = await peer.talk(Messages().head().body(PROMPT))
        stopping = asyncio.create_task(peer.server.stop(60))
        await asyncio.sleep(0)
        assert not stopping.done()
        assert await peer.finish(call) is grpc.StatusCode.OK
        async with asyncio.timeout(60):
            await stopping
        watch.cancel()


@pytest.mark.parametrize("grace_s", [0.0, 0.02, 60.0])
async def test_no_grace_of_grpc_ever_ends(monkeypatch, grace_s):
    """Its server crashes if a second stop meets the end of a grace, so only ``None`` ends it."""
    async with Peer(router(llm())) as peer:
        watch = health_pb2_grpc.HealthStub(peer.channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        stop, given = peer.server._server.stop, []

        def noted(grace):
            given.append(grace)
            return stop(grace)

        monkeypatch.setattr(peer.server, "_server", SimpleNamespace(stop=noted))
        async with asyncio.timeout(60):
            await peer.server.stop(grace_s)
        assert sorted(given, key=lambda grace: grace is not None) == [None, grace_s + NEVER_S]
        watch.cancel()


@pytest.mark.parametrize(
    "messages",
    [Messages().body(b"x"), Messages().head().head(), Messages().trailers()],
    ids=["body-first", "two-heads", "trailers-first"],
)
async def test_illegal_orders_close_the_stream_with_ok(messages):
    """Envoy continues by itself; the stream is counted and not answered."""
    async with Peer(router(llm())) as peer:
        call, answers = await peer.talk(messages)
        assert len(answers) == len(messages.made) - 1
        assert await call.code() is grpc.StatusCode.OK
        assert peer.counted("errors_total", kind="protocol") == 1


async def test_garbage_closes_the_stream_with_ok():
    """Bytes that are not a message, and a message without content."""
    async with Peer(router(llm())) as peer:
        for data in (b"\xff\xff", b""):
            call = peer.open()
            await call.write(data)
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK
        assert peer.counted("errors_total", kind="protocol") == 2


async def test_a_bug_never_escapes(monkeypatch):
    """An exception of ours closes the stream with OK, so the request is served without a pick."""
    async with Peer(router(llm())) as peer:
        monkeypatch.setattr(peer.router, "decide", lambda *_: 1 / 0)
        call, answers = await peer.talk(Messages().head(end=True))
        assert answers == []
        assert await call.code() is grpc.StatusCode.OK
        assert peer.counted("errors_total", kind="internal") == 1
