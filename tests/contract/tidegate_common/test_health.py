"""gRPC health over a real channel."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tidegate_common import health
from tidegate_common.health import NOT_SERVING, SERVING, HealthService

UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Served:
    """A health service and a stub of it."""

    async def __aenter__(self):
        self.health = HealthService()
        self.server = grpc.aio.server()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.stub = health_pb2_grpc.HealthStub(self.channel)
        return self

    async def __aexit__(self, *_):
        await self.channel.close()
        await self.server.stop(0)

    def watch(self, service="x"):
        return self.stub.Watch(health_pb2.HealthCheckRequest(service=service))

    async def check(self, service="x"):
        return (await self.stub.Check(health_pb2.HealthCheckRequest(service=service))).status

    async def watched_by(self, count):
        async with asyncio.timeout(60):
            while self.health.watchers != count:  # noqa: ASYNC110 - no event to await
                await asyncio.sleep(0)


class Caller:
    """The server's side of a call whose client reads messages only when the test allows it."""

    def __init__(self):
        self.may_take = asyncio.Event()
        self.taken = []

    async def write(self, response):
        await self.may_take.wait()
        self.taken.append(response.status)


async def settle():
    """Let every task that is ready run."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_check_follows_set():
    """V105: the status is the one last set; a service that was never set is not found."""
    async with Served() as served:
        for serving, status in ((True, SERVING), (False, NOT_SERVING)):
            served.health.set("x", serving=serving)
            assert await served.check() == status
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.check("y")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watcher_hears_each_change():
    """A watcher gets the current status at once, and then only changes."""
    async with Served() as served:
        served.health.set("x", serving=False)
        watch = served.watch()
        assert (await watch.read()).status == NOT_SERVING
        served.health.set("x", serving=False)
        served.health.set("x", serving=True)
        assert (await watch.read()).status == SERVING
        watch.cancel()


async def test_a_watch_survives_when_another_leaves():
    """The end of one watch ends no other."""
    async with Served() as served:
        served.health.set("x", serving=False)
        first, second = served.watch(), served.watch()
        await first.read()
        await second.read()
        first.cancel()
        await served.watched_by(1)
        served.health.set("x", serving=True)
        assert (await second.read()).status == SERVING
        second.cancel()
        await served.watched_by(0)


async def test_a_slow_watcher_gets_the_last_status():
    """Missed changes are not queued: after a thousand changes it reads one status."""
    async with Served() as served:
        watch = served.watch()
        assert (await watch.read()).status == UNKNOWN
        for number in range(1_000):
            served.health.set("x", serving=bool(number % 2))
        assert (await watch.read()).status == SERVING
        served.health.set("x", serving=False)
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()


async def test_a_blocked_watcher_delays_no_other():
    """A status that one watcher does not read delays no other watcher."""
    service = HealthService()
    service.set("x", serving=False)
    blocked, reader = Caller(), Caller()
    reader.may_take.set()
    request = health_pb2.HealthCheckRequest(service="x")
    watches = [asyncio.create_task(service.Watch(request, each)) for each in (blocked, reader)]
    for serving in (True, False, True):
        await settle()
        service.set("x", serving=serving)
    await settle()
    assert reader.taken == [NOT_SERVING, SERVING, NOT_SERVING, SERVING]
    assert blocked.taken == []
    blocked.may_take.set()
    await settle()
    assert blocked.taken == [NOT_SERVING, SERVING]
    for watch in watches:
        watch.cancel()
    await asyncio.gather(*watches, return_exceptions=True)
    assert service.watchers == 0


async def test_a_service_may_become_known():
    """SERVICE_UNKNOWN is a status like others: the watch stays open."""
    async with Served() as served:
        watch = served.watch("later")
        assert (await watch.read()).status == UNKNOWN
        served.health.set("later", serving=True)
        assert (await watch.read()).status == SERVING
        watch.cancel()


async def test_watchers_are_bounded(monkeypatch):
    """A watch above the bound is rejected; the others are not affected."""
    monkeypatch.setattr(health, "MAX_WATCHERS", 1)
    async with Served() as served:
        watch = served.watch()
        assert (await watch.read()).status == UNKNOWN
        refused = served.watch()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await refused.read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        served.health.set("x", serving=True)
        assert (await watch.read()).status == SERVING
        watch.cancel()
