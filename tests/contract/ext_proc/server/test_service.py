"""The gRPC service over a real channel in this process."""

from __future__ import annotations

import sys

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from ext_proc.exchange import ExchangeOptions
from ext_proc.observability.metrics import Metrics
from ext_proc.routing.policies.base import HELD
from ext_proc.routing.values.ticket import Outcome
from ext_proc.server.service import MAX_MESSAGE_BYTES, AddressError, PickerServer
from ext_proc.server.wire import SERVICE
from support.peer import Peer
from support.streams import (
    CHAT_PATH,
    MODE,
    PROMPT,
    Messages,
    llm,
    router,
    vision,
)
from tidegate_api.names import LOAD_HEADER

pytestmark = pytest.mark.usefixtures("transport")


async def test_a_peeked_request():
    """V31: two replies, the pick in the second; the ticket lives until the stream ends."""
    async with Peer(router(llm())) as peer:
        call, (requested, picked) = await peer.talk(Messages().head().body(PROMPT))
        assert requested.message.mode_override.request_body_mode == MODE.BUFFERED_PARTIAL
        assert requested.picked is None
        assert len(picked.picked) == 3
        assert sum(peer.router.registry.in_flight().values()) == 1
        assert peer.counted("open_streams") == 1
        assert await peer.finish(call) is grpc.StatusCode.OK
        await peer.settled(Outcome.DONE)
        assert peer.counted("open_streams") == 0
        assert peer.counted("prompt_blocks_total", part="all") == 4
        assert peer.counted("exchange_seconds_count", part="waiting") == 1
        assert peer.counted("picks_total", pool="llm", variant="stable", reason="least") == 1


async def test_what_others_did_is_read_before_a_decision():
    """They are read before each message that may lead to a decision, and not after the pick."""
    request_router, seen = router(llm()), []
    async with Peer(
        request_router, refresh=lambda: seen.append(request_router.registry.in_flight())
    ) as peer:
        call, _ = await peer.talk(Messages().head().body(PROMPT).response())
        assert len(seen) == 2
        assert not any(sum(counts.values()) for counts in seen)
        await peer.finish(call)


@pytest.mark.parametrize("body", [b"no healthy upstream", b'{"prompt": "hello'])
async def test_unreadable_bodies(body):
    """V38: 400 if only the body names the pool; with a known pool what it says of such bodies."""
    async with Peer(router(llm(unsound_requests="pass"))) as peer:
        _, answers = await peer.talk(Messages(route="unnamed/chat").head(CHAT_PATH).body(body))
        assert (answers[-1].status, answers[-1].reason) == (400, "bad-request")
        _, answers = await peer.talk(Messages().head().body(body))
        assert answers[-1].picked is not None
        assert peer.counted("unreadable_bodies_total") == 2


async def test_a_moved_request():
    """The body names another pool than the route's: the reply moves the request there."""
    async with Peer(router(llm(), vision())) as peer:
        messages = Messages(route="unnamed/chat").head(CHAT_PATH)
        _, answers = await peer.talk(messages.body({"model": "vision", "messages": []}))
        assert answers[-1].picked == ["10.0.0.20:8080"]
        assert answers[-1].common.clear_route_cache


async def test_no_pools_is_no_pick():
    """Before any pool is known the proxy continues by itself."""
    async with Peer(router()) as peer:
        _, (answer,) = await peer.talk(Messages().head())
        assert (answer.kind, answer.picked) == ("request_headers", None)
        assert peer.counted("passes_total", pool="", reason="no-pools") == 1


async def test_a_required_pick_that_is_not_there():
    """Each request is refused, and both counts tell it."""
    async with Peer(router(), options=ExchangeOptions(require_pick=True)) as peer:
        _, (answer,) = await peer.talk(Messages().head())
        assert (answer.status, answer.reason) == (503, "no-pick")
        assert peer.counted("passes_total", pool="", reason="no-pools") == 1
        assert peer.counted("refusals_total", pool="", reason="no-pick") == 1


@pytest.mark.parametrize("transport", ["grpc", "nghttp2"])
async def test_a_required_pick_and_a_bug(monkeypatch, transport):
    """A stream that fails is refused before it is closed."""
    monkeypatch.setattr(Peer, "transport", transport)
    request_router = router(llm(body="none"))

    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(request_router, "decide", broken)
    async with Peer(request_router, options=ExchangeOptions(require_pick=True)) as peer:
        call, (answer,) = await peer.talk(Messages().head())
        assert (answer.status, answer.reason) == (503, "no-pick")
        assert peer.counted("errors_total", kind="internal") == 1
        assert peer.counted("passes_total", pool="", reason="failed") == 1
        await peer.finish(call)


async def test_a_reply_that_waits_for_companions(monkeypatch):
    """It is held for the pool's time, and then handed over like any other."""
    async with Peer(router(llm(body="none", co_batch_hold_s=0.0005))) as peer:
        decide = peer.router.decide
        monkeypatch.setattr(peer.router, "decide", lambda *on: decide(*on).changed(reason=HELD))
        call, (answer,) = await peer.talk(Messages().head())
        assert answer.picked
        assert peer.server._holds.held == 1
        assert await peer.finish(call) is grpc.StatusCode.OK
        await peer.settled(Outcome.DONE)


async def test_a_large_body_crosses():
    """V80: a whole body above gRPC's usual 4 MiB is read, and one above the pool's bound is 413."""
    assert MAX_MESSAGE_BYTES > 256 * 2**20  # the most that `routing.max_body` may be
    big = {"text_input": "x" * 5_000_000}
    async with Peer(router(llm(body="full", max_body_bytes=8 * 2**20))) as peer:
        _, answers = await peer.talk(Messages(mode=MODE.BUFFERED).head().body(big))
        assert answers[-1].picked is not None
    async with Peer(router(llm(body="full"))) as peer:
        _, answers = await peer.talk(Messages(mode=MODE.BUFFERED).head().body(big))
        assert answers[-1].status == 413


async def test_a_taken_port_is_one_clear_error():
    """Two pickers never share a port silently."""
    async with Peer(router()) as peer:
        other = PickerServer(router(), picker="x", metrics=Metrics(CollectorRegistry()))
        with pytest.raises(AddressError, match=f"cannot listen on {peer.address}"):
            await other.start(peer.address)
        await other.stop(0)


async def test_health():
    """V105: readiness follows `set_ready`, liveness stays, unknown services are not found."""
    serving, not_serving = (
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.NOT_SERVING,
    )
    async with Peer(router()) as peer:
        stub = health_pb2_grpc.HealthStub(peer.channel)

        async def check(service):
            return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status

        names = ("", "readiness", SERVICE)
        assert [await check(name) for name in names] == [not_serving] * 3
        assert await check("liveness") == serving
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == not_serving
        peer.server.set_ready(ready=True)
        assert (await watch.read()).status == serving
        assert [await check(name) for name in names] == [serving] * 3
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check("absent")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch.cancel()


async def test_load_reports_go_to_whom_asked_for_them():
    """They are passed on with the replica that has the request; without a ticket they are not."""
    received = []
    async with Peer(
        router(llm(orca=True, body="none")), lambda *report: received.append(report)
    ) as peer:
        call, (picked,) = await peer.talk(Messages().head())
        assert picked.picked
        await peer.talk(Messages().response(headers={LOAD_HEADER: "TEXT rps=1", "x": "y"}), call)
        await peer.finish(call)
    ((endpoint, headers),) = received
    assert headers == ((LOAD_HEADER, "TEXT rps=1"),)
    assert endpoint in {"r1", "r2", "r3"}


async def test_an_override_keeps_the_answers_headers_where_a_pool_asks():
    """Without it the picker's own override would undo the route's mode."""
    for orca, mode in ((True, MODE.SEND), (False, MODE.SKIP)):
        async with Peer(router(llm(orca=orca))) as peer:
            call, (requested, _) = await peer.talk(Messages().head().body(PROMPT))
            assert requested.message.mode_override.response_header_mode == mode
            await peer.finish(call)


async def test_a_waiting_stream_keeps_no_message():
    """Rule 4: while a stream waits for its end, the body's message is not referenced any more."""
    sent = Messages().head().body(PROMPT).bytes()
    references = []

    class Stream:
        """Delivers the messages, and counts the references to the last one at the end."""

        def invocation_metadata(self):
            return ()

        async def read(self):
            if sent:
                self.message = sent.pop(0)
                return self.message
            references.append(sys.getrefcount(self.message))
            return grpc.aio.EOF

        async def write(self, reply):
            assert reply

    server = PickerServer(router(llm()), picker="p", metrics=Metrics(CollectorRegistry()))
    await server.process(None, Stream())
    assert references == [2]  # the stream's own, and the call that counts


async def test_a_refusal_without_a_pool_has_none_in_its_label():
    """The name that a client invents is no label; the control server hears of the refusal."""
    async with Peer(router(llm())) as peer:
        sent = Messages(route="unnamed/http").head("/v2/models/invented/generate", end=True)
        _, (answer,) = await peer.talk(sent)
        assert answer.reason == "unknown-model"
        assert peer.counted("refusals_total", pool="", reason="unknown-model") == 1
