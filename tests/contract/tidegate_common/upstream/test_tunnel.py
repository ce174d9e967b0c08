"""The local end of a TLS connection, for gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest

from support.certificates import Authority, Pair
from tidegate.stack.processes.ports import HeldPorts
from tidegate_common.upstream import tunnel as module
from tidegate_common.upstream.contexts import ReplicaTls, client_context
from tidegate_common.upstream.tunnel import MAX_CONNECTIONS, Tunnel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SAY = "/test.Test/Say"


class Made:
    """An authority and a replica's certificate."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "ca")
        self.pair: Pair = self.authority.sign("replica", "DNS:triton.test")
        self.context = client_context(
            ReplicaTls(ca=str(self.authority.own.certificate), server_name="triton.test"), "h2"
        )

    async def give(self) -> ssl.SSLContext:
        """Return the client's context."""
        return self.context


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return the certificates of this file's tests."""
    return Made(tmp_path_factory.mktemp("tunnel"))


@contextlib.asynccontextmanager
async def saying(pair: Pair, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Serve a method over TLS that says what it was told."""

    async def say(message: bytes, _: object) -> bytes:
        return message

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handler = grpc.unary_unary_rpc_method_handler(say)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Test", {"Say": handler}),)
    )
    keys = [(pair.key.read_bytes(), pair.certificate.read_bytes())]
    bound = server.add_secure_port(address, grpc.ssl_server_credentials(keys))
    await server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        await server.stop(0)


async def say(channel: grpc.aio.Channel, *, wait: bool = False) -> bytes:
    """Call the method."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(SAY)
    return await call(b"hello", timeout=60.0, wait_for_ready=wait)


async def said_at_last(channel: grpc.aio.Channel) -> bytes:
    """Call the method; once more if a connection that has ended takes the first call."""
    try:
        return await say(channel, wait=True)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return await say(channel, wait=True)


async def test_a_channel_is_kept_over_a_restart_of_its_replica(made: Made) -> None:
    """Each connection is a new one, and what the old one held is given up."""
    with HeldPorts() as ports:
        address = ports.address()
        async with saying(made.pair, address):
            tunnel = Tunnel(address, made.give, "triton.test")
            channel = grpc.aio.insecure_channel(tunnel.open())
            assert await say(channel) == b"hello"
            assert tunnel.connections == 1
            assert tunnel.fault is None
        async with saying(made.pair, address):
            assert await said_at_last(channel) == b"hello"
            assert tunnel.connections == 1
            await channel.close()
            await tunnel.close()
        assert tunnel.connections == 0


async def test_the_socket_is_private_and_goes(made: Made) -> None:
    """Whoever can connect to it speaks with the pool's certificate."""
    tunnel = Tunnel("127.0.0.1:1", made.give, None)
    folder = Path(tunnel.open().removeprefix("unix:")).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    await tunnel.close()
    assert not folder.exists()


async def test_a_connection_that_cannot_be_made_is_closed_and_told(made: Made) -> None:
    """By a replica that is not there, one that is not trusted, and files that cannot be used."""
    told: list[Exception] = []

    async def unusable() -> ssl.SSLContext:
        raise ValueError("no files")

    async with saying(made.pair) as address:
        for tunnel, kind in (
            (Tunnel("127.0.0.1:1", made.give, "triton.test", told.append), ConnectionRefusedError),
            (Tunnel(address, made.give, "other.test", told.append), ssl.SSLCertVerificationError),
            (Tunnel(address, unusable, "triton.test", told.append), ValueError),
        ):
            async with tunnel, asyncio.timeout(60):
                reader, writer = await asyncio.open_unix_connection(
                    tunnel.target.removeprefix("unix:")
                )
                assert await reader.read() == b""
                assert isinstance(tunnel.fault, kind)
                assert isinstance(told[-1], kind)
                writer.close()


async def test_connections_and_their_handshakes_are_bounded(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further ones are closed at once; a far end that says nothing costs its time at most."""
    monkeypatch.setattr(module, "CONNECT_S", 0.5)
    held: list[asyncio.StreamWriter] = []
    mute = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    port = mute.sockets[0].getsockname()[1]
    async with Tunnel(f"127.0.0.1:{port}", made.give, None) as tunnel, asyncio.timeout(60):
        path = tunnel.target.removeprefix("unix:")
        ends = [await asyncio.open_unix_connection(path) for _ in range(MAX_CONNECTIONS + 3)]
        for reader, _ in ends:
            assert await reader.read() == b""
        assert len(held) <= MAX_CONNECTIONS
        assert isinstance(tunnel.fault, TimeoutError)
        for _, writer in ends:
            writer.close()
    for writer in held:
        writer.close()
    mute.close()
