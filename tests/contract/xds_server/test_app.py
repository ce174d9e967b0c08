"""The control server as a whole, in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2

from support.fleets import fleet
from tidegate.stack.processes.ports import HeldPorts
from tidegate_api.names import PICKER_NODE_CLUSTER, POOL_TYPE
from xds_server.__main__ import main
from xds_server.app import EXIT_CANNOT_START, EXIT_OK, run
from xds_server.settings import ControlSettings


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


async def _pools_of(address: str, held: str = "") -> tuple[str, str]:
    """Ask for pools as a picker that holds a version, or none; return the version, or the error."""
    request = discovery_pb2.DeltaDiscoveryRequest(
        type_url=POOL_TYPE, initial_resource_versions={"llm": held} if held else {}
    )
    request.node.id, request.node.cluster = "picker-1", PICKER_NODE_CLUSTER
    async with grpc.aio.insecure_channel(address) as channel:
        stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
        call = stub.DeltaAggregatedResources(wait_for_ready=True)
        await call.write(request)
        try:
            found = await call.read()
        except grpc.aio.AioRpcError as error:
            return "", error.details() or ""
        return found.resources[0].version, ""


@contextlib.asynccontextmanager
async def _serving(settings: ControlSettings) -> AsyncIterator[None]:
    stop = asyncio.Event()
    server = asyncio.create_task(run(settings, stop))
    yield
    stop.set()
    assert await server == EXIT_OK


async def test_clients_of_a_lost_history_get_nothing_until_the_loss_is_accepted(
    settings, tmp_path
) -> None:
    """So a lost disk does not take back drains, also after a restart; other clients are served."""
    with HeldPorts() as ports:
        kept = settings(ads=ports.address())
        async with _serving(kept):
            lost, _ = await _pools_of(kept.ads)
        made = kept.model_copy(update={"state": tmp_path / "empty"})
        for _ in range(2):
            async with _serving(made):
                found, _ = await _pools_of(made.ads)
                assert found
                for older in (lost, lost[:32]):
                    _, error = await _pools_of(made.ads, older)
                    assert "another history than" in error
        for accepting in (made.model_copy(update={"accept_loss": True}), made):
            async with _serving(accepting):
                assert await _pools_of(made.ads, lost) == (found[:32], "")


def test_a_wrong_option_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the option and gives an example."""
    assert main(["--fleet", "f.yaml", "--ads", "localhost"]) == EXIT_CANNOT_START
    assert "--ads: 'localhost' is no address" in capsys.readouterr().err
