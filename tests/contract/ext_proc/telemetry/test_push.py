"""Pushed readings over a real gRPC channel, and a reporter at its other end."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from aiohttp import web

from ext_proc.routing.values.reading import Reading
from ext_proc.telemetry import push as module
from ext_proc.telemetry.push import Push, ending
from ext_proc.telemetry.report import write
from tidegate.reporter.run import MetricsReporter, ReporterOptions
from tidegate_api.telemetry.v1 import telemetry_pb2_grpc
from tidegate_common.tls.pem import Validity


class Picker:
    """A server with this service only; records what it receives."""

    def __init__(self):
        self.received = asyncio.Queue()
        self.push = Push(
            lambda endpoint, readings, at: self.received.put_nowait((endpoint, readings, at)),
            lambda endpoint: self.received.put_nowait(("restart", endpoint)),
            lambda endpoint: self.received.put_nowait(("end", endpoint)),
        )
        self.address = ""

    async def next(self):
        async with asyncio.timeout(60):
            return await self.received.get()


@pytest.fixture
async def picker():
    made = Picker()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((made.push.handler(),))
    made.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield made
    await server.stop(0)


@pytest.fixture
async def stub(picker):
    async with grpc.aio.insecure_channel(picker.address) as channel:
        yield telemetry_pb2_grpc.TelemetryStub(channel)


async def test_reports_are_heard_in_order_and_end(picker, stub):
    """Readings arrive with their time; the end of the stream is reported."""
    call = stub.Report()
    await call.write(write("r", 0.5, [Reading(0.0, "m", queued=1)]))
    endpoint, (reading,), at = await picker.next()
    assert (endpoint, reading.model, reading.queued, reading.at) == ("r", "m", 1, at)
    await call.write(write("r", 0.0, [], restarts=1))
    assert await picker.next() == ("restart", "r")
    assert (await picker.next())[1] == ()
    await call.done_writing()
    await call
    assert await picker.next() == ("end", "r")
    assert picker.push.state() == {"streams": 0, "endpoints": 0, "reports": 2, "refused": 0}


def test_certificates_of_reporters_that_end_soon_are_told():
    """Connections last for an hour: a certificate of an hour is replaced unseen."""
    day = 86_400.0
    held = {
        "r1": Validity(-87 * day, 3 * day),
        "r2": Validity(-80 * day, 20 * day),
        "r3": Validity(-3600.0, 60.0),
        "r4": Validity(-90 * day, -60.0),
    }
    assert ending(held, 0.0, 3600.0) == {
        "r1": "its reporter's ends at 1970-01-04 00:00 UTC",
        "r4": "its reporter's has ended at 1969-12-31 23:59 UTC",
    }


async def test_a_bad_report_ends_its_stream_only(picker, stub):
    """It is refused with its reason; another stream continues."""
    good, bad = stub.Report(), stub.Report()
    await good.write(write("good", 0.0, []))
    await picker.next()
    await bad.write(write("bad", -1.0, []))
    with pytest.raises(grpc.aio.AioRpcError, match="age_seconds is -1") as error:
        await bad
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await good.write(write("good", 0.0, []))
    assert (await picker.next())[0] == "good"
    assert picker.push.refused == 1
    good.cancel()


async def test_the_newer_stream_of_an_endpoint_counts(picker, stub):
    """Further reports of the older one are ignored, and its end has no effect."""
    older = stub.Report()
    await older.write(write("r", 0.0, [Reading(0.0, queued=1)]))
    await picker.next()
    newer = stub.Report()
    await newer.write(write("r", 0.0, [Reading(0.0, queued=2)]))
    assert (await picker.next())[1][0].queued == 2
    await older.write(write("r", 0.0, [Reading(0.0, queued=3)]))
    await older.done_writing()
    await older
    await newer.write(write("r", 0.0, [Reading(0.0, queued=4)]))
    assert (await picker.next())[1][0].queued == 4
    newer.cancel()
    assert await picker.next() == ("end", "r")


async def test_streams_are_bounded(picker, stub, monkeypatch):
    """One more stream than the bound is refused."""
    monkeypatch.setattr(module, "MAX_STREAMS", 1)
    first = stub.Report()
    await first.write(write("r", 0.0, []))
    await picker.next()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await stub.Report()
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    first.cancel()
    await picker.next()


async def test_a_reporter_tells_changes_and_restarts(picker):
    """The reporter reads a page; the picker receives its numbers, their changes and a restart."""
    page = {"done": 5, "queued": 1}

    async def answer(_):
        labels = '{model="m",version="1"}'
        return web.Response(
            text=f"nv_inference_request_success{labels} {page['done']}\n"
            f"nv_inference_pending_request_count{labels} {page['queued']}\n"
        )

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    running = asyncio.create_task(
        MetricsReporter(ReporterOptions("r", url, (picker.address,), 0.01)).run()
    )

    async def until(wanted):
        while not wanted(await picker.next()):
            pass

    await until(lambda event: event[0] == "r" and event[1][0].queued == 1)
    page["queued"] = 7
    await until(lambda event: event[0] == "r" and event[1][0].queued == 7)
    page["done"] = 0
    await until(lambda event: event == ("restart", "r"))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await until(lambda event: event == ("end", "r"))
    await runner.cleanup()
