"""gRPC health as the picker (over both transports) and the control server serve it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from ext_proc.observability.metrics import Metrics
from ext_proc.server.service import PickerServer
from support.streams import router
from tidegate_common import health
from tidegate_common.health import NOT_SERVING, SERVING
from xds_server.observability import XdsMetrics
from xds_server.protocol import wire
from xds_server.server.service import AdsServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
SERVICES = ("picker-grpc", "picker-nghttp2", "control")
WAIT_S = 60.0


class Client:
    """A channel to a started server, and the server."""

    def __init__(self, server: Any, address: str) -> None:
        self.server = server
        self.channel = grpc.aio.insecure_channel(address)
        self.stub = health_pb2_grpc.HealthStub(self.channel)

    def watch(self, service: str = "") -> Any:
        return self.stub.Watch(health_pb2.HealthCheckRequest(service=service))

    async def check(self, service: str) -> Any:
        return (await self.stub.Check(health_pb2.HealthCheckRequest(service=service))).status

    def set(self, *, serving: bool) -> None:
        """Change the status of the whole server."""
        self.server._health.set("", serving=serving)

    async def watched_by(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.server._health.watchers != count:  # noqa: ASYNC110 - no event to await
                await asyncio.sleep(0)


def _server(kind: str) -> Any:
    if kind == "control":
        return AdsServer(XdsMetrics(CollectorRegistry()))
    return PickerServer(
        router(),
        picker="p",
        metrics=Metrics(CollectorRegistry()),
        transport="nghttp2" if kind == "picker-nghttp2" else "grpc",
    )


@asynccontextmanager
async def started(kind: str) -> AsyncIterator[Client]:
    """Start a server, SERVING, on a free port and stop it again."""
    server = _server(kind)
    client = Client(server, await server.start("127.0.0.1:0"))
    client.set(serving=True)
    try:
        yield client
    finally:
        await client.channel.close()
        await server.stop(0)


async def read(watch: Any) -> Any:
    """Return the next status that a watch is sent."""
    async with asyncio.timeout(WAIT_S):
        return (await watch.read()).status


@pytest.mark.parametrize("kind", SERVICES)
async def test_a_watch_survives_when_another_leaves(kind: str) -> None:
    """After one of two watchers has left, the other gets the next change."""
    async with started(kind) as client:
        leaving, staying = client.watch(), client.watch()
        assert [await read(leaving), await read(staying)] == [SERVING, SERVING]
        leaving.cancel()
        await client.watched_by(1)
        client.set(serving=False)
        assert await read(staying) == NOT_SERVING
        staying.cancel()
        await client.watched_by(0)


@pytest.mark.parametrize("kind", SERVICES)
async def test_a_slow_watcher_costs_the_others_nothing(kind: str) -> None:
    """While one does not read, another gets each change; the slow one catches up later."""
    async with started(kind) as client:
        slow, prompt = client.watch(), client.watch()
        assert [await read(slow), await read(prompt)] == [SERVING, SERVING]
        for serving in (False, True, False):
            client.set(serving=serving)
            assert await read(prompt) == (SERVING if serving else NOT_SERVING)
        for serving in (False, True, False):  # this much fits into the transport's window
            assert await read(slow) == (SERVING if serving else NOT_SERVING)
        slow.cancel()
        prompt.cancel()


@pytest.mark.parametrize("kind", SERVICES)
async def test_an_unknown_service_may_be_watched(kind: str) -> None:
    """The watch stays open with SERVICE_UNKNOWN; a check is NOT_FOUND."""
    async with started(kind) as client:
        watch = client.watch("later")
        assert await read(watch) == UNKNOWN
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.check("later")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        client.server._health.set("later", serving=True)
        assert await read(watch) == SERVING
        watch.cancel()


@pytest.mark.parametrize("kind", SERVICES)
async def test_watchers_are_bounded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch above the bound gets RESOURCE_EXHAUSTED; after one ends, a new one is accepted."""
    monkeypatch.setattr(health, "MAX_WATCHERS", 1)
    async with started(kind) as client:
        first = client.watch()
        assert await read(first) == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(client.watch())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()
        await client.watched_by(0)
        second = client.watch()
        assert await read(second) == SERVING
        second.cancel()


async def test_the_control_server_tells_every_watcher_that_it_stops() -> None:
    """NOT_SERVING for the whole and for ADS, also after another watcher has left."""
    async with started("control") as client:
        leaving, *staying = (
            client.watch(name) for name in (wire.ADS_SERVICE, wire.ADS_SERVICE, "")
        )
        assert [await read(each) for each in (leaving, *staying)] == [SERVING] * 3
        leaving.cancel()
        await client.watched_by(2)
        stopping = asyncio.create_task(client.server.stop(grace=WAIT_S))
        assert [await read(each) for each in staying] == [NOT_SERVING] * 2
        for each in staying:
            each.cancel()
        await stopping
