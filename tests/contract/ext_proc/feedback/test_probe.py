"""The prober against a real server in this process."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from ext_proc.feedback.probe import Prober, Target, targets_of
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant

KEY = EndpointKey("r1", 1)


def test_only_replicas_with_http_and_a_path_are_asked():
    """A gRPC-only replica, and a variant without a path, are not probed."""
    pool = Pool(
        name="llm",
        variants=(Variant("stable", 1, probe_path="/ready"), Variant("canary", 1)),
        endpoints=(
            Endpoint(KEY, "stable", http="10.0.0.1:8000", grpc=None),
            Endpoint(EndpointKey("r2", 1), "stable", http=None, grpc="10.0.0.1:8001"),
            Endpoint(EndpointKey("r3", 1), "canary", http="10.0.0.3:8000", grpc=None),
        ),
        probe_interval_s=2.0,
    )
    assert targets_of({"llm": pool}) == {Target("llm", KEY, "http://10.0.0.1:8000/ready", 2.0)}


@asynccontextmanager
async def replica(status):
    """Serve a port that answers ``status[0]``."""
    app = web.Application()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status[0], headers={"location": "/"})

    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/ready"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def probing(targets):
    """Probe; yield the queue of results and the prober."""
    results: asyncio.Queue[tuple[str, EndpointKey, bool, str]] = asyncio.Queue()
    prober = Prober(lambda *result: results.put_nowait(result), jitter=lambda: 0.0)
    prober.set_targets(targets)
    task = asyncio.create_task(prober.run())
    try:
        yield results, prober
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(("status", "ready"), [(200, True), (400, False), (302, False)])
async def test_only_200_is_a_yes(status, ready):
    """Triton answers 400 if a model is not ready; a redirect proves nothing."""
    async with (
        replica([status]) as url,
        probing({Target("llm", KEY, url, 0.01)}) as (results, _),
        asyncio.timeout(60),
    ):
        assert (await results.get())[:3] == ("llm", KEY, ready)


@pytest.mark.parametrize(
    ("paths", "ready"),
    [
        ({"/health": 200}, True),
        ({"/health": 503}, False),
        ({"/health/ready": 200}, True),
        ({"/v2/models/m/ready": 400, "/health": 200}, False),
        ({}, False),
    ],
)
async def test_an_engine_without_tritons_api_is_asked_its_own_way(paths, ready):
    """They answer 404 to the readiness of a model, which Triton never does."""
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=paths.get(request.path, 404))

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    prober = Prober(lambda *_: None)
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v2/models/m/ready"
    try:
        async with prober.client:
            assert (await prober.probe(url) is None) is ready
            asked.clear()
            assert (await prober.probe(url) is None) is ready
            if ready:
                assert asked == list(paths)
                paths.clear()
                paths["/v2/models/m/ready"] = 200
                assert await prober.probe(url) is None
                asked.clear()
                assert await prober.probe(url) is None
                assert asked == ["/v2/models/m/ready"]
    finally:
        await runner.cleanup()


async def test_a_path_that_is_not_tritons_is_asked_alone():
    """A declared path says what it means, also with 404."""
    status = [404]
    prober = Prober(lambda *_: None)
    async with replica(status) as url, prober.client:
        said = await prober.probe(url)
        assert said == "answers 404 at /ready"


async def test_a_closed_port_is_a_no_and_a_return_is_seen():
    """A refused connection and a wrong address mean not ready; the loop continues."""
    status = [400]
    async with (
        replica(status) as url,
        probing({Target("llm", KEY, "http://127.0.0.1:1/", 0.01)}) as (results, prober),
        asyncio.timeout(60),
    ):
        assert (await results.get())[2] is False
        prober.set_targets({Target("llm", KEY, url, 0.01)})
        status[0] = 200
        while not (await results.get())[2]:
            pass
        prober.set_targets(set())
        assert len(prober._tasks) == 0


@pytest.mark.parametrize(
    ("answers", "path", "said"),
    [
        ({}, "/v2/models/m/ready", "has no model m that is ready"),
        ({}, "/v2/models/m/versions/1/ready", "has no version 1 of m that is ready"),
        (
            {"/v2/models/m/ready": 200},
            "/v2/models/m/versions/1/ready",
            "serves another version of m than 1",
        ),
        ({}, "/health/live", "is not ready by /health/live"),
    ],
)
async def test_what_is_not_ready_is_told(answers, path, said):
    """Unloaded, and loaded in another version, are told apart (400 is Triton's answer to both)."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=answers.get(request.path, 400))

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        prober = Prober(lambda *_: None)
        async with prober.client:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}{path}"
            assert await prober.probe(url) == said
    finally:
        await runner.cleanup()


async def test_a_replica_that_does_not_answer_is_told_from_a_dead_one(monkeypatch):
    """Killed: connections are refused. Frozen: they are taken and nothing is answered."""
    monkeypatch.setattr("ext_proc.feedback.probe.TIMEOUT_S", 0.05)
    silent = socket.create_server(("127.0.0.1", 0))  # the kernel takes connections for it
    port = silent.getsockname()[1]
    prober = Prober(lambda *_: None)
    async with prober.client:
        frozen = await prober.probe(f"http://127.0.0.1:{port}/v2/models/m/ready")
        silent.close()
        dead = await prober.probe(f"http://127.0.0.1:{port}/v2/models/m/ready")
    assert (frozen, dead) == ("does not answer within 0.05 s", "refuses connections")
