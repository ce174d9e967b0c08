"""Gateways hold models out of use by a stream."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from gateway.changes import ModelDrains, UndrainedError
from tidegate_api.fleet.v1 import report_pb2, report_pb2_grpc
from xds_server.applications.loading.leaving import ModelDrained
from xds_server.server import drains as module
from xds_server.server.drains import ModelDrainService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Leaving:
    """What a control server takes out of use."""

    def __init__(self) -> None:
        self.outcome = ModelDrained()
        self.held: dict[object, tuple[tuple[str, ...], str]] = {}
        self.released = asyncio.Event()

    async def hold(self, holder: object, endpoints: tuple[str, ...], model: str) -> ModelDrained:
        """Hold, and say what the test says."""
        self.held[holder] = endpoints, model
        return self.outcome

    async def release(self, holder: object) -> None:
        """Let go."""
        del self.held[holder]
        self.released.set()


@asynccontextmanager
async def serving(leaving: Leaving | None) -> AsyncIterator[grpc.aio.Channel]:
    """Serve drains; yield a channel."""
    service = ModelDrainService()
    service.leaving = leaving  # type: ignore[assignment]  # enough
    server = grpc.aio.server()
    report_pb2_grpc.add_ModelDrainsServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


async def test_a_model_is_held_as_long_as_the_stream_is_open() -> None:
    """However long the unload takes; then it is in use again."""
    leaving = Leaving()
    leaving.outcome = ModelDrained((), ("picker p: 2 requests for m on r1",))
    async with serving(leaving) as channel:
        async with ModelDrains(channel).held("m", ["r2", "r1"]):
            assert list(leaving.held.values()) == [(("r1", "r2"), "m")]
            assert not leaving.released.is_set()
        async with asyncio.timeout(10):
            await leaving.released.wait()


async def test_a_failed_unload_lets_go_too() -> None:
    """The stream ends with whatever happens inside."""
    leaving = Leaving()
    async with serving(leaving) as channel:
        with pytest.raises(ZeroDivisionError):
            async with ModelDrains(channel).held("m", ["r1"]):
                raise ZeroDivisionError
        async with asyncio.timeout(10):
            await leaving.released.wait()


async def test_clients_that_have_not_been_told_refuse_the_unload() -> None:
    """Nothing is held then, and the caller is told who."""
    leaving = Leaving()
    leaving.outcome = ModelDrained(("picker p is not connected",))
    async with serving(leaving) as channel:
        with pytest.raises(UndrainedError, match="picker p is not connected"):
            async with ModelDrains(channel).held("m", ["r1"]):
                raise AssertionError("held")
        async with asyncio.timeout(10):  # the refusal reaches the client before the service lets go
            await leaving.released.wait()
        assert leaving.held == {}


async def test_a_control_server_that_is_away_refuses_the_unload() -> None:
    """So does one that has no fleet yet."""
    async with serving(None) as channel:
        with pytest.raises(UndrainedError, match="no fleet yet"):
            async with ModelDrains(channel).held("m", ["r1"]):
                raise AssertionError("held")
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        with pytest.raises(UndrainedError):
            async with ModelDrains(channel).held("m", ["r1"]):
                raise AssertionError("held")


async def test_streams_and_what_they_name_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the bounds is refused with the bound."""
    monkeypatch.setattr(module, "MAX_STREAMS", 1)
    monkeypatch.setattr(module, "MAX_REPLICAS", 2)
    leaving = Leaving()
    async with serving(leaving) as channel:
        drains = ModelDrains(channel)
        for model, endpoints in (("m", ["r1", "r2", "r3"]), ("", ["r1"]), ("m" * 300, ["r1"])):
            with pytest.raises(UndrainedError):
                async with drains.held(model, endpoints):
                    raise AssertionError("held")
        async with drains.held("m", ["r1"]):
            with pytest.raises(UndrainedError, match="try again"):
                async with drains.held("m", ["r2"]):
                    raise AssertionError("held")
        async with asyncio.timeout(10):
            await leaving.released.wait()
        assert leaving.held == {}


async def test_a_stream_that_says_nothing_holds_nothing() -> None:
    """Its end is its refusal."""
    leaving = Leaving()
    async with serving(leaving) as channel:
        call: Any = report_pb2_grpc.ModelDrainsStub(channel).Hold()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert leaving.held == {}
        call = report_pb2_grpc.ModelDrainsStub(channel).Hold()
        await call.write(report_pb2.HeldModel(model="m"))
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
