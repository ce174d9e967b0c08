"""The looker against real servers in this process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from aiohttp import web

from ext_proc.feedback.placement import looker as module
from ext_proc.feedback.placement.looker import INDEX_PATH, Looker, LookTarget, look_targets
from ext_proc.feedback.placement.pace import NoListing
from ext_proc.routing.values.listing import OWN_MODEL, Listing, PlacementState, Row
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant

KEY = EndpointKey("r1", 1)
READY = b'[{"name":"m","version":"1","state":"READY"}]'
ROWS = (Row("m", "1", PlacementState.READY),)


@asynccontextmanager
async def replica(answers):
    """Serve ``answers`` by method and path; yield the address and what was asked."""
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.method, request.path))
        status, body = answers.get((request.method, request.path), (404, b""))
        return web.Response(status=status, body=body)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


@asynccontextmanager
async def looking(targets, differs=lambda: False):
    """Look; yield the queue of results and the looker."""
    results: asyncio.Queue[tuple[EndpointKey, Listing | None]] = asyncio.Queue()

    def found(key: EndpointKey, listing: Listing | None) -> bool:
        results.put_nowait((key, listing))
        return differs()

    looker = Looker(found, jitter=lambda: 0.0)
    looker.set_targets(targets)
    task = asyncio.create_task(looker.run())
    try:
        async with asyncio.timeout(60):
            yield results, looker
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def ask(target):
    """Ask once."""
    looker = Looker(lambda *_: False)
    async with looker.client:
        return await looker.ask(target)


def test_each_replica_is_asked_once_for_all_its_pools():
    """At the shortest interval of the pools that want it."""
    replicas = (
        Endpoint(KEY, "stable", http="10.0.0.1:8000", grpc="10.0.0.1:8001"),
        Endpoint(EndpointKey("r2", 1), "stable", http=None, grpc="10.0.0.2:8001"),
    )
    pools = {
        name: Pool(
            name=name,
            variants=(Variant("stable", 1),),
            endpoints=replicas[:count],
            probe_interval_s=interval,
            repository=wanted,
        )
        for name, interval, wanted, count in (
            ("a", 5.0, True, 2),
            ("b", 2.0, True, 1),
            ("c", 0.1, False, 2),
        )
    }
    assert look_targets(pools) == {
        LookTarget(KEY, "10.0.0.1:8000", "10.0.0.1:8001", 2.0),
        LookTarget(EndpointKey("r2", 1), None, "10.0.0.2:8001", 5.0),
    }


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ({("POST", INDEX_PATH): (200, READY)}, ROWS),
        ({("POST", INDEX_PATH): (500, b"")}, NoListing.FAILED),
        ({("POST", INDEX_PATH): (403, b"")}, NoListing.FAILED),
        ({("POST", INDEX_PATH): (200, b"<html>")}, NoListing.FAILED),
        ({("POST", INDEX_PATH): (200, b"[" * 2000)}, NoListing.FAILED),
        (
            {("GET", "/v1/models"): (200, b'{"data":[{"id":"m"}]}')},
            (Row("m", "", "READY", OWN_MODEL),),
        ),
        ({("GET", "/v1/models"): (503, b"")}, NoListing.FAILED),
        ({}, NoListing.SILENT),
    ],
)
async def test_what_an_answer_says(monkeypatch, answers, found):
    """Only a list of models is one; where there is no such API it is not asked for often."""
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    async with replica(answers) as (address, _):
        answer = await ask(LookTarget(KEY, address, None, 1.0))
    assert (answer.rows if isinstance(answer, Listing) else answer) == found


async def test_a_closed_port_is_a_replica_that_is_gone():
    """What it told before is forgotten; over HTTP and over gRPC."""
    assert await ask(LookTarget(KEY, "127.0.0.1:1", None, 1.0)) is NoListing.GONE
    assert await ask(LookTarget(KEY, None, "127.0.0.1:1", 1.0)) is NoListing.GONE
    assert await ask(LookTarget(KEY, None, None, 1.0)) is NoListing.SILENT


async def test_a_replica_that_speaks_only_grpc_is_asked_over_it():
    """The same rows; a server without the call has no such API."""
    told = [b"\x0a\x0d\x0a\x01m\x12\x011\x1a\x05READY"]

    async def index(_: bytes, __: grpc.aio.ServicerContext) -> bytes:
        return told[0]

    server = grpc.aio.server()
    service, _, method = module.INDEX_METHOD[1:].partition("/")
    handler = grpc.unary_unary_rpc_method_handler(index)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    bare = grpc.aio.server()
    other = bare.add_insecure_port("127.0.0.1:0")
    await server.start()
    await bare.start()
    try:
        found = await ask(LookTarget(KEY, None, f"127.0.0.1:{port}", 1.0))
        assert found.rows == ROWS
        told[0] = b"\xff\xff"
        assert await ask(LookTarget(KEY, None, f"127.0.0.1:{port}", 1.0)) is NoListing.FAILED
        assert await ask(LookTarget(KEY, None, f"127.0.0.1:{other}", 1.0)) is NoListing.SILENT
    finally:
        await server.stop(0)
        await bare.stop(0)


async def test_looks_go_on_and_come_at_once_when_called_for(monkeypatch):
    """A call does not wait for the interval, and two calls are one look."""
    monkeypatch.setattr(module, "GAP_S", 0.05)
    async with (
        replica({("POST", INDEX_PATH): (200, READY)}) as (address, asked),
        looking({LookTarget(KEY, address, None, 15.0)}) as (results, looker),
    ):
        key, first = await results.get()
        assert (key, first.rows) == (KEY, ROWS)
        looker.look(KEY)
        looker.look(KEY)
        looker.look(EndpointKey("unknown", 1))
        await results.get()
        assert len(asked) == 2
        looker.set_targets(set())
        looker.look(KEY)
        assert (len(looker._tasks), looker._wanted) == (0, {})


async def test_a_replica_that_goes_is_told_and_followed_quickly():
    """Its return is seen within the quick interval, not within the usual one."""
    async with looking({LookTarget(KEY, "127.0.0.1:1", None, 15.0)}) as (results, _):
        assert await results.get() == (KEY, None)
        assert await results.get() == (KEY, None)
