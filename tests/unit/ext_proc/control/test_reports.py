"""In-flight counts to the control server."""

from __future__ import annotations

import asyncio
import itertools

import grpc
import pytest

from ext_proc.control.reports import ReportSender, report_of
from tidegate_api.fleet.v1 import report_pb2, report_pb2_grpc
from tidegate_common.backoff import Backoff


class Server(report_pb2_grpc.PickerReportsServicer):
    """Records received reports; ends a stream after its second report."""

    def __init__(self):
        self.received = asyncio.Queue()

    async def Report(self, request_iterator, _):  # noqa: N802 - gRPC's name
        count = 0
        async for report in request_iterator:
            await self.received.put(report)
            count += 1
            if count == 2:
                break
        return report_pb2.ReportSummary()


def test_a_report_is_full_and_sorted():
    """It contains each endpoint with requests in flight, by name."""
    report = report_of("picker-1", {"r2": 1, "r1": 3})
    assert report.picker_id == "picker-1"
    assert [(each.id, each.in_flight) for each in report.endpoints] == [("r1", 3), ("r2", 1)]


async def test_reports_follow_changes_and_survive_the_server():
    """The first report is complete, a change sends another, a new stream starts anew."""
    server, servicer = grpc.aio.server(), Server()
    report_pb2_grpc.add_PickerReportsServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    counts, taken = {"r1": 0}, ["1-1"]
    async with (
        asyncio.timeout(60),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        reporter = ReportSender(
            channel,
            picker="picker-1",
            in_flight=lambda: counts,
            taken=lambda: taken[0],
            rng=lambda: 0.0,
            interval_s=0.001,
        )
        task = asyncio.create_task(reporter.run())
        assert not (await servicer.received.get()).endpoints
        counts["r1"] = 2
        (changed,) = (await servicer.received.get()).endpoints
        assert (changed.id, changed.in_flight) == ("r1", 2)
        (again,) = (await servicer.received.get()).endpoints
        assert again.in_flight == 2
        taken[0] = "1-2"
        assert (await servicer.received.get()).taken == "1-2"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await server.stop(0)


async def test_a_lost_stream_is_opened_at_once_when_the_server_is_there(monkeypatch):
    """A drain waits for the report, so the delay between attempts must not hold it up."""
    monkeypatch.setattr(Backoff, "delay_s", lambda _: 60.0)
    server, servicer = grpc.aio.server(), Server()
    report_pb2_grpc.add_PickerReportsServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with (
        asyncio.timeout(60),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        numbers = itertools.count()
        reporter = ReportSender(
            channel,
            picker="picker-1",
            in_flight=lambda: {"r1": next(numbers)},
            rng=lambda: 0.0,
            interval_s=0.001,
        )
        task = asyncio.create_task(reporter.run())
        for _ in range(2):
            await servicer.received.get()
        reporter.wake()
        await servicer.received.get()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await server.stop(0)
