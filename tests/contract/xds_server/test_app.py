"""The control server as a whole, in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2

from support.fleets import fleet
from tidegate.stack.processes.ports import HeldPorts
from tidegate_api.names import PICKER_NODE_CLUSTER, POOL_TYPE
from xds_server.__main__ import main
from xds_server.app import EXIT_CANNOT_START, EXIT_OK, LOSS_KEY, run
from xds_server.fleet.store import RevisionStore
from xds_server.settings import ControlSettings

WAITED_S = 1.0
"""Seconds for which a write waits for a store to be closed that must not be."""


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., ControlSettings]:
    """Return a function that makes settings of a server on free ports."""
    path = tmp_path / "fleet.yaml"
    path.write_text(fleet().model_dump_json())

    def make(**more) -> ControlSettings:
        free = dict.fromkeys(("ads", "admin", "metrics"), "127.0.0.1:0")
        return ControlSettings.model_validate(
            {"fleet": path, "state": tmp_path / "s", **free, **more}
        )

    return make


async def test_a_server_starts_and_stops(settings, capsys: pytest.CaptureFixture[str]) -> None:
    """With JSON logs every line is an event."""
    stop = asyncio.Event()
    stop.set()
    assert await run(settings(log_format="json"), stop) == EXIT_OK
    assert '"event": "control_server_ready"' in capsys.readouterr().err


async def test_an_invalid_fleet_is_reported_in_one_error(settings, capsys) -> None:
    """Nothing is started."""
    made = settings()
    made.fleet.write_text("pools: []")
    assert await run(made, asyncio.Event()) == EXIT_CANNOT_START
    assert capsys.readouterr().err.endswith(
        "fleet.yaml:1: pools: empty; write at least one entry\n"
    )
    assert made.state is not None
    assert not made.state.exists()


@pytest.mark.parametrize("port", ["ads", "admin", "metrics"])
async def test_a_port_in_use_is_reported(settings, capsys, port: str) -> None:
    """The message names the address."""
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        assert await run(settings(**{port: address}), asyncio.Event()) == EXIT_CANNOT_START
    assert address.rpartition(":")[2] in capsys.readouterr().err


async def _pools_of(address: str, held: str = "") -> str:
    """Ask for pools as a picker that may hold one; return the error that it gets, or nothing."""
    request = discovery_pb2.DeltaDiscoveryRequest(
        type_url=POOL_TYPE, initial_resource_versions={held: "0" * 32} if held else {}
    )
    request.node.id, request.node.cluster = f"picker-{held}", PICKER_NODE_CLUSTER
    async with grpc.aio.insecure_channel(address) as channel:
        stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
        call = stub.DeltaAggregatedResources(wait_for_ready=True)
        await call.write(request)
        try:
            await call.read()
        except grpc.aio.AioRpcError as error:
            return error.details() or ""
        return ""


async def test_clients_of_a_lost_history_get_nothing_until_the_loss_is_accepted(settings) -> None:
    """So a lost disk does not take back drains, also after a restart; other clients are served."""
    with HeldPorts() as ports:
        made = settings(ads=ports.address())
        for again in (False, True):
            stop = asyncio.Event()
            server = asyncio.create_task(run(made, stop))
            lost = await _pools_of(made.ads, "llm")
            assert lost.startswith(f"{made.state}/tidegate.db was empty, but picker-llm ("), again
            assert await _pools_of(made.ads) == ""
            stop.set()
            assert await server == EXIT_OK
        for accepting in (made.model_copy(update={"accept_loss": True}), made):
            stop = asyncio.Event()
            server = asyncio.create_task(run(accepting, stop))
            assert await _pools_of(made.ads, "llm") == ""
            stop.set()
            assert await server == EXIT_OK


async def test_a_loss_is_stored_by_a_server_that_stops_meanwhile(settings, monkeypatch) -> None:
    """The write has not begun when the server stops."""
    closed = threading.Event()
    put, close = RevisionStore.put_value, RevisionStore.close

    def put_late(store: RevisionStore, key: str, value: str) -> None:
        if key == LOSS_KEY:
            closed.wait(WAITED_S)
        put(store, key, value)

    def close_told(store: RevisionStore) -> None:
        close(store)
        closed.set()

    monkeypatch.setattr(RevisionStore, "put_value", put_late)
    monkeypatch.setattr(RevisionStore, "close", close_told)
    with HeldPorts() as ports:
        made = settings(ads=ports.address())
        stop = asyncio.Event()
        server = asyncio.create_task(run(made, stop))
        assert await _pools_of(made.ads, "llm")
        stop.set()
        assert await server == EXIT_OK
    store = RevisionStore(made.state)
    assert store.value(LOSS_KEY)
    close(store)


def test_a_wrong_option_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the option and gives an example."""
    assert main(["--fleet", "f.yaml", "--ads", "localhost"]) == EXIT_CANNOT_START
    assert "--ads: 'localhost' is no address" in capsys.readouterr().err
