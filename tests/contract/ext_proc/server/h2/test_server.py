"""A real gRPC client against the server over libnghttp2, over sockets."""

from __future__ import annotations

import asyncio
import socket
import warnings

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ext_proc.server.h2 import connection as h2
from ext_proc.server.h2.server import Http2Server
from support.h2peer import Calls, settle
from support.time import Clock
from tidegate_common.health import HealthService

CODE = grpc.StatusCode
LIMIT = 2**22
ANY_SIZE = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Served:
    """A server and a channel to it."""

    async def __aenter__(self):
        self.calls, self.health = Calls(), HealthService()
        self.server = Http2Server(LIMIT)
        self.server.add_generic_rpc_handlers((self.calls.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        self.port = self.server.add_port("127.0.0.1:0")
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=ANY_SIZE)
        return self

    async def __aexit__(self, *_):
        await self.channel.close()
        async with asyncio.timeout(20):
            await self.server.stop(None)
            while self.server.connections:  # noqa: ASYNC110 - the loop sends no notification
                await asyncio.sleep(0)

    def open(self, method, **options):
        """Begin a call with streams in both directions."""
        return self.channel.stream_stream(f"/test.T/{method}")(**options)

    async def gone(self):
        """Wait until no stream is open."""
        async with asyncio.timeout(20):
            while any(each.streams for each in self.server.connections):  # noqa: ASYNC110
                await asyncio.sleep(0)
        await settle()  # and its handler has been cancelled


@pytest.fixture
async def served():
    """Run one server per test."""
    async with Served() as running:
        yield running


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_384, 300_000, LIMIT])
async def test_messages_of_any_size(served, size):
    """They return unchanged, in both directions."""
    call = served.open("echo")
    await call.write(bytes(size))
    assert await call.read() == bytes(size)
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is CODE.OK


async def test_single_messages_and_streams(served):
    """Calls with one message, and with many and one answer, as access logs have."""
    assert await served.channel.unary_unary("/test.T/once")(b"abc") == b"cba"
    collect = served.channel.stream_unary("/test.T/collect")
    call = collect(metadata=[("x-some", "thing"), ("y-bin", b"\0\xff")])
    for message in (b"1", b"", b"333"):
        await call.write(message)
    await call.done_writing()
    assert await call == b"1,0,3"


async def test_duplex_of_many_at_once(served):
    """Concurrent calls are independent."""

    async def talk(number):
        call = served.open("echo")
        for step in range(5):
            await call.write(message := f"{number} {step}".encode())
            assert await call.read() == message
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF

    await asyncio.gather(*(talk(number) for number in range(100)))
    await served.gone()


@pytest.mark.parametrize(
    ("method", "code", "details"),
    [
        ("aborts", CODE.NOT_FOUND, "50 % älter: 潮\n"),
        ("fails", CODE.UNKNOWN, ""),
        ("nothing", CODE.UNIMPLEMENTED, "no method /test.T/nothing"),
    ],
)
async def test_statuses(served, method, code, details):
    """The client reads the code and the text unchanged."""
    call = served.open(method)
    if method == "fails":  # the others may have ended before it was written
        await call.write(b"x")
    assert await call.code() is code
    assert await call.details() == details


@pytest.mark.parametrize(
    ("options", "size", "code"),
    [
        ({}, LIMIT + 1, CODE.RESOURCE_EXHAUSTED),
        ({"compression": grpc.Compression.Gzip}, 10_000, CODE.UNIMPLEMENTED),
    ],
)
async def test_messages_that_are_not_taken(served, options, size, code):
    """Messages that are too large, and compressed ones, which are not supported."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await served.channel.unary_unary("/test.T/once")(bytes(size), **options)
    assert error.value.code() is code


async def test_a_client_that_cancels(served):
    """Its handler is cancelled."""
    call = served.open("held")
    await call.write(b"x")
    assert call.cancel()
    await served.gone()
    # The call may have ended before its handler began.
    assert served.calls.cancelled <= 1
    assert not served.calls.read


async def test_a_clients_deadline(served):
    """The call ends at the caller's deadline, and its handler with it."""
    clock, call = Clock(), served.open("held", timeout=60)
    await call.write(b"x")
    await clock.until(lambda: any(each.streams for each in served.server.connections))
    await settle()  # and its handler has begun
    clock.advance(61)
    assert await call.code() is CODE.DEADLINE_EXCEEDED
    await served.gone()
    assert served.calls.cancelled == 1


async def test_a_client_that_leaves(served):
    """A closed channel ends its handlers."""
    call = served.open("held")
    await call.write(b"x")
    while not any(each.streams for each in served.server.connections):  # noqa: ASYNC110
        await asyncio.sleep(0)
    await served.channel.close()
    await served.gone()
    assert served.calls.cancelled == 1


async def test_health(served):
    """Check and Watch work as Envoy and Kubernetes use them."""
    stub = health_pb2_grpc.HealthStub(served.channel)
    served.health.set("a", serving=False)
    request = health_pb2.HealthCheckRequest(service="a")
    assert (await stub.Check(request)).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch = stub.Watch(request)
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    served.health.set("a", serving=True)
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stub.Check(health_pb2.HealthCheckRequest(service="b"))
    assert error.value.code() is CODE.NOT_FOUND
    garbled = served.channel.unary_unary("/grpc.health.v1.Health/Check")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await garbled(b"\xff\xff")
    assert error.value.code() is CODE.INTERNAL
    await served.gone()
    assert served.health.watchers == 0


async def test_stop_lets_open_streams_end():
    """They continue, new ones are refused, and the stop returns with the last of them."""
    async with Served() as served:
        call = served.open("echo")
        await call.write(b"before")
        await call.read()
        stopping = asyncio.create_task(served.server.stop(30))
        while not all(each._leaving for each in served.server.connections):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await call.write(b"after")
        assert await call.read() == b"after"
        assert not stopping.done()
        late = served.open("echo")
        assert await late.code() is CODE.UNAVAILABLE
        await call.done_writing()
        assert await call.code() is CODE.OK
        await stopping


async def test_a_second_stop_cuts_the_first_short():
    """Open calls then end as cancelled, and nothing is left pending."""
    async with Served() as served:
        call = served.open("held")
        await call.write(b"x")
        while not any(each.streams for each in served.server.connections):  # noqa: ASYNC110
            await asyncio.sleep(0)
        stopping = asyncio.create_task(served.server.stop(3600))
        await asyncio.sleep(0)
        await served.server.stop(None)
        await stopping
        assert await call.code() in {CODE.CANCELLED, CODE.UNAVAILABLE}
        assert served.calls.cancelled == 1


async def test_an_address_that_is_taken(served):
    """It is an error, not a second listener; so are ports that do not exist."""
    for address in (f"127.0.0.1:{served.port}", "127.0.0.1:99999", "192.0.2.1:0"):
        with pytest.raises(RuntimeError):
            Http2Server(LIMIT).add_port(address)


async def test_the_kernel_watches_peers(served):
    """Connections are probed, so that one whose peer has vanished ends."""
    assert await served.channel.unary_unary("/test.T/once")(b"x") == b"x"
    (connection,) = served.server.connections
    accepted = connection._transport.get_extra_info("socket")
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_peer_that_does_not_read_its_goodbye_is_cut(monkeypatch):
    """A closing connection does not wait for it forever."""
    monkeypatch.setattr(h2, "LINGER_S", 0.05)
    async with Served() as served:
        with socket.create_connection(("127.0.0.1", served.port)) as peer:
            while not served.server.connections:  # noqa: ASYNC110
                await asyncio.sleep(0)
            (connection,) = served.server.connections
            connection._transport.write(bytes(50_000_000))
            connection.cut()
            async with asyncio.timeout(20):
                while served.server.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert peer.fileno() >= 0


async def test_nothing_is_left_behind():
    """After a stop no task and no socket remains."""
    before = asyncio.all_tasks()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        async with Served() as served:
            assert await served.channel.unary_unary("/test.T/once")(b"x") == b"x"
            bound = list(served.server._sockets)
        assert all(each.fileno() == -1 for each in bound)
    left = {task for task in asyncio.all_tasks() - before if "h2" in repr(task.get_coro())}
    assert not left
