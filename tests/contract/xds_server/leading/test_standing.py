"""Two control servers on one store: one leads, and the other follows until that one stops."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
from typing import Any

import grpc
import pytest
from aiohttp import ClientSession
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import ValidationError
from typer.testing import CliRunner

from support.certificates import Authority
from support.etcd_port import EtcdPort, SmallEtcd
from support.fleets import fleet
from tidegate.cli.main import app
from tidegate.stack.processes.ports import HeldPorts
from tidegate_api.admin.v1 import admin_pb2, admin_pb2_grpc
from tidegate_api.names import LEADER_METADATA
from tidegate_common.tls.files import TlsError
from xds_server.app import EXIT_OK, run
from xds_server.fleet.store import StoreError
from xds_server.leading import standing
from xds_server.leading.stores import opened
from xds_server.settings import ControlSettings, etcd_address

WAIT_S = 60.0


@pytest.fixture
def etcd():
    """Return a small etcd and its port."""
    small = SmallEtcd(least_ttl_s=600)  # a lost lease would end this process
    with EtcdPort(small.answer) as port:
        small.address = port.address
        yield small


@pytest.fixture
async def server(tmp_path, etcd):
    """Return a function that runs a control server: its ports, and what stops it."""
    file = tmp_path / "fleet.yaml"
    file.write_text(fleet().model_dump_json())
    with HeldPorts() as ports:
        names: list[Any] = []
        async with contextlib.AsyncExitStack() as stack:

            def start(admin: str = "", **options: Any) -> One:
                given = {"state": file.parent / f"state-{len(names)}", **options}
                names.append(given)
                found = One(file, etcd.address, ports, admin, **given)
                stack.push_async_callback(found.end)
                return found

            yield start


class One:
    """A control server in this process."""

    def __init__(self, file, store: str, ports: HeldPorts, admin: str, **options: Any) -> None:
        self.ads, self.admin = ports.address(), admin or ports.address()
        self.http = ports.address()
        self.pages = ports.address()
        self.settings = ControlSettings(
            fleet=file,
            store=f"etcd://{store}",
            ads=self.ads,
            admin=self.admin,
            metrics=self.pages,
            admin_http=self.http,
            **options,
        )
        self.stopped = asyncio.Event()
        self.task = asyncio.create_task(run(self.settings, self.stopped))

    async def end(self) -> int:
        """Stop it and return its exit code."""
        self.stopped.set()
        return await self.task

    async def status(self):
        """Return its status."""
        async with grpc.aio.insecure_channel(self.admin) as channel:
            return await admin_pb2_grpc.AdminStub(channel).GetStatus(admin_pb2.GetStatusRequest())

    async def drain(self, endpoint: str) -> None:
        """Drain a replica."""
        options = admin_pb2.ChangeOptions(force=True)
        asked = admin_pb2.SetDrainingRequest(endpoint=endpoint, draining=True, options=options)
        async with grpc.aio.insecure_channel(self.admin) as channel:
            await admin_pb2_grpc.AdminStub(channel).SetDraining(asked)

    async def health(self) -> int:
        """Return its health."""
        async with grpc.aio.insecure_channel(self.ads) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            return (await stub.Check(health_pb2.HealthCheckRequest())).status

    async def said_to_lead(self) -> int:
        """Return what its page answers a probe that asks whether it leads."""
        async with ClientSession() as http, http.get(f"http://{self.pages}/leads") as answer:
            return answer.status

    async def until(self, check) -> None:
        """Wait until its port answers, and the check of it is true."""
        async with asyncio.timeout(WAIT_S):
            while True:
                assert not self.task.done(), self.task.result()
                with contextlib.suppress(grpc.aio.AioRpcError):
                    if await check():
                        return
                await asyncio.sleep(0.05)

    async def leads(self) -> bool:
        """Return whether it leads and has a fleet."""
        return (await self.status()).revision > 0

    async def follows(self) -> bool:
        """Return whether it knows who leads."""
        try:
            await self.status()
        except grpc.aio.AioRpcError as error:
            return LEADER_METADATA in dict(error.trailing_metadata())
        return False

    async def refuses(self) -> bool:
        """Return whether it says that the store is older than what it has read."""
        try:
            await self.status()
        except grpc.aio.AioRpcError as error:
            return "it has nothing, not change" in (error.details() or "")
        return False


async def test_a_server_follows_until_the_leader_stops(server) -> None:
    """Its clients are sent to others, operators to the leader; then it has the leader's fleet."""
    first = server()
    await first.until(first.leads)
    second = server()
    await second.until(second.follows)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await second.status()
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert f"leads ({first.admin})" in error.value.details()
    assert await second.health() == health_pb2.HealthCheckResponse.NOT_SERVING
    assert (await first.said_to_lead(), await second.said_to_lead()) == (200, 503)
    async with grpc.aio.insecure_channel(second.ads) as channel:
        call = channel.stream_stream("/any/method")()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
    async with ClientSession() as http, http.get(f"http://{second.http}/v1/fleet") as answer:
        assert (answer.status, (await answer.json())["message"]) == (503, error.value.details())
    await first.drain("r1")
    words = ["history", "--server", second.admin, "--output", "json"]
    told = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert '"r1"' in told.output or "r1 draining" in told.output
    assert await first.end() == EXIT_OK
    await second.until(second.leads)
    assert (await second.status()).revision == 2
    assert await second.health() == health_pb2.HealthCheckResponse.SERVING


async def test_a_follower_stops_at_once(server) -> None:
    """It has nothing to give back; its socket is that of a control server."""
    first = server()
    await first.until(first.leads)
    second = server()
    await second.until(second.follows)
    assert await second.end() == EXIT_OK
    assert await first.leads()


async def test_another_file_of_a_new_leader_waits(server) -> None:
    """It may be an older one, which would undo what the leader before has applied."""
    first = server()
    await first.until(first.leads)
    assert await first.end() == EXIT_OK
    file = first.settings.fleet
    file.write_text(fleet(waves=True).model_dump_json())
    second = server()
    await second.until(second.leads)
    found = await second.status()
    assert found.revision == 1
    assert "is not the file that was applied last" in found.file_error


async def test_a_server_that_starts_again_refuses_an_empty_store(server, etcd) -> None:
    """No server leads, and operators are told so, until one is started with --accept-loss."""
    first = server()
    await first.until(first.leads)
    assert await first.end() == EXIT_OK
    etcd.clear()
    again = server(state=first.settings.state)
    await again.until(again.refuses)
    assert await again.end() == EXIT_OK
    accepting = server(state=first.settings.state, accept_loss=True)
    await accepting.until(accepting.leads)


@pytest.mark.parametrize("given", ["kubernetes://", "kubernetes://a/", "kubernetes://A/b"])
def test_a_wrong_name_of_kubernetes_is_told(given, tmp_path) -> None:
    """With what would be right."""
    with pytest.raises(ValidationError, match="write kubernetes://NAMESPACE/NAME"):
        ControlSettings(fleet=tmp_path, store=given)


@pytest.mark.parametrize("given", ["10.0.0.1:2379", "etcd://", "etcd://a", "etcd://a:1,,b:2"])
def test_a_wrong_store_is_told(given, tmp_path) -> None:
    """With what would be right."""
    with pytest.raises(ValidationError, match="write the addresses of etcd's members"):
        ControlSettings(fleet=tmp_path, store=given)


@pytest.mark.parametrize(
    "options",
    [
        {"store": "etcd://a:1", "store_ca": "f", "store_cert": "f"},
        {"store": "etcd://a:1", "store_cert": "f", "store_key": "f"},
        {"store_ca": "f"},
        {"store": "kubernetes://infer/tidegate", "store_ca": "f"},
        {"store_kubeconfig": "f"},
    ],
)
def test_options_of_the_store_that_do_not_fit_are_told(options, tmp_path) -> None:
    """Each names the option that is too much, or lacks."""
    with pytest.raises(ValidationError, match="--st"):
        ControlSettings(fleet=tmp_path, **options)


def test_files_for_etcd_that_cannot_be_used_are_told(tmp_path) -> None:
    """At the start, instead of a store that does not answer."""
    authority = Authority(tmp_path, "ca")
    one, other = authority.sign("one", "IP:127.0.0.1"), authority.sign("other", "IP:127.0.0.1")
    (tmp_path / "text").write_text("no certificate")
    given = {"fleet": tmp_path, "store": "etcd://a:1"}
    for ca, told in ((tmp_path / "text", "contains no certificates"), (tmp_path / "x", "No such")):
        with pytest.raises(StoreError, match=f"--store-ca: .*{told}"):
            opened(ControlSettings(**given, store_ca=ca))
    pair = {"store_cert": one.certificate, "store_key": other.key}
    with pytest.raises(TlsError, match="is not the key of the certificate"):
        opened(ControlSettings(**given, **pair, store_ca=authority.own.certificate))


def test_an_api_server_that_is_not_named_is_told(tmp_path, monkeypatch) -> None:
    """At the start too, with the option that names it."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    given = {"fleet": tmp_path, "store": "kubernetes://infer/tidegate"}
    with pytest.raises(StoreError, match="name the API server by --store-kubeconfig"):
        opened(ControlSettings(**given))
    with pytest.raises(StoreError, match=r"--store: .*absent"):
        opened(ControlSettings(**given, store_kubeconfig=tmp_path / "absent"))


def test_several_fleets_share_an_etcd() -> None:
    """Each by a prefix of its own."""
    found = etcd_address("etcd://10.0.0.1:2379,[::1]:2379/prod")
    assert found == (("10.0.0.1:2379", "[::1]:2379"), "/prod/")
    assert etcd_address("etcd://a:1").prefix == "/tidegate/"


def test_a_leader_ends_though_its_log_is_on_a_full_disk(monkeypatch):
    """Without its lease it must not serve, whatever cannot be written."""

    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    ended: list[int] = []
    monkeypatch.setattr(standing.sys, "stderr", Full())
    monkeypatch.setattr(standing.os, "_exit", ended.append)
    standing._end()
    assert ended == [standing.EXIT_LOST]
