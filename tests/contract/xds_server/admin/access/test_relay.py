"""gRPC behind a Unix socket knows the user of each call."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import grpc
import pytest

from support.fleets import fleet
from support.operators import calls
from tidegate_api.admin.v1 import admin_pb2, admin_pb2_grpc
from tidegate_common.unix import LocalUser, UnixListener
from xds_server.admin.access import relay as module
from xds_server.admin.access.relay import UserRelay
from xds_server.admin.access.trail import CHANGES_NAME
from xds_server.admin.csds import ClientStatusService
from xds_server.admin.server import AdminServer
from xds_server.admin.service import AdminService
from xds_server.control.fleet_control import Control
from xds_server.fleet.store import RevisionStore

WAIT_S = 10.0


class Ads:
    """Clients: none; publishes to nobody."""

    settled = True

    def clients(self) -> tuple:
        """Return none."""
        return ()

    def in_flight(self) -> dict[str, int]:
        """Return none."""
        return {}


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Serve the admin API at a socket; yield its address."""
    monkeypatch.setattr(LocalUser, "name", property(lambda user: f"user-{user.uid}"))
    control = Control(RevisionStore(None), Ads(), lambda: 5, lambda: 1.0)  # type: ignore[arg-type]
    control._publish = lambda *_: None  # type: ignore[method-assign,assignment]
    control._state = None
    server = AdminServer(AdminService(control, Ads()), ClientStatusService(Ads()), calls(tmp_path))  # type: ignore[arg-type]
    address = server.bind(f"unix:{tmp_path}/admin.sock")
    await server.start()
    yield address
    await server.stop(0)
    assert not (tmp_path / "admin.sock").exists()


async def test_a_call_has_the_user_who_connected(served: str, tmp_path: Path) -> None:
    """As the kernel names it."""
    async with grpc.aio.insecure_channel(served) as channel:
        stub = admin_pb2_grpc.AdminStub(channel)
        request = admin_pb2.ApplyRequest(fleet="no fleet")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Apply(request, timeout=WAIT_S)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    line = (tmp_path / CHANGES_NAME).read_text()
    assert f'"peer":"uid {os.getuid()} pid {os.getpid()}"' in line
    assert f'"identity":"user-{os.getuid()}","by":"user","role":"admin"' in line


async def test_large_messages_pass(served: str) -> None:
    """In pieces, and whole."""
    text = fleet().model_dump_json() + " " * 3_000_000
    async with grpc.aio.insecure_channel(served) as channel:
        request = admin_pb2.ApplyRequest(fleet=f"x{text}")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin_pb2_grpc.AdminStub(channel).Apply(request, timeout=WAIT_S)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_what_does_not_come_through_the_socket_has_no_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any process of the machine can find gRPC's own address."""
    made: list[UserRelay] = []
    real = UserRelay.__init__
    monkeypatch.setattr(UserRelay, "__init__", lambda self: (made.append(self), real(self))[1])
    server = AdminServer(AdminService(None, Ads()), ClientStatusService(Ads()), calls())  # type: ignore[arg-type]
    server.bind(f"unix:{tmp_path}/s")
    await server.start()
    async with grpc.aio.insecure_channel(made[0].inner_address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin_pb2_grpc.AdminStub(channel).GetFleet(
                admin_pb2.GetFleetRequest(), timeout=WAIT_S
            )
    await server.stop(0)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert made[0].user_of("ipv4:127.0.0.1:1") is None
    assert made[0].user_of("unix-abstract:other") is None


async def test_a_socket_in_use_is_refused_with_what_would_be_right(served: str) -> None:
    """A second server of the user meets the socket of the first."""
    second = AdminServer(AdminService(None, Ads()), ClientStatusService(Ads()), calls())  # type: ignore[arg-type]
    with pytest.raises(OSError, match=r"in use by another process; --admin names another address"):
        second.bind(served)
    await second.stop(0)


@pytest.mark.parametrize("bound", ["MAX_CONNECTIONS", "MAX_OF_ONE"])
async def test_connections_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """Further ones are closed at once, and the place of one that ended is free again."""
    monkeypatch.setattr(module, bound, 2)
    relay = UserRelay(lambda _: "ann")
    inner = socket.socket(socket.AF_UNIX)
    inner.bind("\0" + relay.inner_address.partition(":")[2])
    inner.listen()
    listener = UnixListener(tmp_path / "s")
    await relay.serve(listener)
    open_ = [await asyncio.open_unix_connection(str(listener.path)) for _ in range(2)]
    async with asyncio.timeout(WAIT_S):
        await _users(relay, 2)
        reader, writer = await asyncio.open_unix_connection(str(listener.path))
        assert not await _rest(reader)
        writer.close()
        open_[0][1].close()
        await _users(relay, 1)
    for _, each in open_:
        each.close()
    await relay.stop()
    assert not relay._users
    listener.close()
    inner.close()


async def _users(relay: UserRelay, count: int) -> None:
    """Wait until this number of users is connected."""
    while len(relay._users) != count:  # noqa: ASYNC110 - the relay has no event for tests
        await asyncio.sleep(0.01)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
