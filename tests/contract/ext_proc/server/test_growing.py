"""A ``grpc.aio`` server whose largest message can grow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from ext_proc.server import growing
from ext_proc.server.growing import MIB, GrowingServer, _rounded
from support.h2peer import Calls

CODE = grpc.StatusCode
ANY_SIZE = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Grown:
    """A server and its address."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.server = GrowingServer(2 * MIB)
        self.server.add_generic_rpc_handlers((self.calls.handler(),))
        self.port = self.server.add_port("127.0.0.1:0")

    async def grow(self, limit: int) -> None:
        """Raise the limit, and wait until it is in force."""
        self.server.set_limit(limit)
        if self.server._growth is not None:
            await self.server._growth

    async def once(self, size: int, **options: Any) -> grpc.StatusCode:
        """Send one message on a connection of its own; return the call's status.

        The kernel resets connections that a replaced server had not yet accepted.
        """
        pool = [*ANY_SIZE, ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=pool) as channel:
            call = channel.unary_unary("/test.T/once")(bytes(size), wait_for_ready=True, **options)
            return await call.code()


@pytest.fixture
async def grown() -> AsyncIterator[Grown]:
    """Run one server."""
    made = Grown()
    await made.server.start()
    yield made
    async with asyncio.timeout(20):
        await made.server.stop(None)


@pytest.mark.parametrize(
    ("wanted", "made"),
    [(1, MIB + 1), (2 * MIB, 2 * MIB), (5 * MIB, 5 * MIB), (5 * MIB + 1, 9 * MIB)],
)
def test_limits_are_few(wanted: int, made: int) -> None:
    """Nine sizes lead to the largest body there is."""
    assert _rounded(wanted) == made


async def test_a_raised_limit_is_in_force_at_the_same_port(grown: Grown) -> None:
    """A fleet with larger bodies needs no restart of the picker."""
    assert await grown.once(3 * MIB) is CODE.RESOURCE_EXHAUSTED
    await grown.grow(3 * MIB + 10)
    assert await grown.once(3 * MIB) is CODE.OK
    assert await grown.once(6 * MIB) is CODE.RESOURCE_EXHAUSTED


async def test_a_limit_never_falls(grown: Grown) -> None:
    """Requests under way may still need it."""
    await grown.grow(3 * MIB)
    before = grown.server._server
    await grown.grow(MIB)
    assert grown.server._server is before
    assert await grown.once(3 * MIB) is CODE.OK


async def test_open_streams_go_on(grown: Grown) -> None:
    """A replacement ends no request."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grown.port}") as channel:
        call: Any = channel.stream_stream("/test.T/echo")()
        await call.write(b"before")
        assert await call.read() == b"before"
        await grown.grow(4 * MIB)
        await call.write(b"after")
        assert await call.read() == b"after"
        await call.done_writing()
        assert await call.code() is CODE.OK


async def test_a_stop_ends_streams_of_replaced_servers(grown: Grown) -> None:
    """They would otherwise keep a stopped picker alive; those within the grace go on."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grown.port}") as channel:
        call: Any = channel.stream_stream("/test.T/echo")()
        await call.write(b"before")
        await call.read()
        await grown.grow(4 * MIB)
        stopping = asyncio.create_task(grown.server.stop(3600))
        await call.write(b"after")
        assert await call.read() == b"after"
        assert not stopping.done()
        await grown.server.stop(None)
        await stopping
        assert await call.code() in {CODE.CANCELLED, CODE.UNAVAILABLE}


async def test_several_changes_at_once_make_one_replacement(grown: Grown) -> None:
    """Pools may come one by one."""
    for size in (3, 6, 12):
        grown.server.set_limit(size * MIB)
    await grown.grow(12 * MIB)
    assert len(grown.server._retired) == 1
    assert await grown.once(12 * MIB) is CODE.OK


async def test_a_port_in_use_is_an_error(grown: Grown) -> None:
    """Replacements share the port, other servers do not."""
    for address in (f"127.0.0.1:{grown.port}", "127.0.0.1:99999", "192.0.2.1:0"):
        with pytest.raises(RuntimeError):
            GrowingServer(MIB).add_port(address)


async def test_compressed_messages_are_not_taken(grown: Grown) -> None:
    """A message of 1 MB may become 1 GB."""
    assert await grown.once(10_000, compression=grpc.Compression.Gzip) is CODE.UNIMPLEMENTED


async def test_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all connections; each open one holds memory."""
    monkeypatch.setattr(growing, "MAX_CALLS", 1)
    made = Grown()
    await made.server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{made.port}") as channel:
        call: Any = channel.stream_stream("/test.T/echo")()
        await call.write(b"x")
        await call.read()
        assert await made.once(1) is CODE.RESOURCE_EXHAUSTED
        call.cancel()
    await made.server.stop(None)
