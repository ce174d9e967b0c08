"""In-flight counts to the control server."""

from __future__ import annotations

import asyncio
import itertools
import time

import grpc
import pytest

from ext_proc.canary import KNOWN_S, Arms, CanarySessions
from ext_proc.control.reporting import canaries
from ext_proc.control.reporting.canaries import CanaryReports
from ext_proc.control.reports import ReportSender, report_of
from tidegate_api.fleet.v1 import report_pb2, report_pb2_grpc
from tidegate_common.backoff import Backoff
from tidegate_common.canary import SessionFailure, SessionRecord, earlier


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
    report = report_of("picker-1", {"r2": 1, "r1": 3}, passes={"no-pool": 2})
    assert dict(report.passes) == {"no-pool": 2}
    assert report.picker_id == "picker-1"
    assert [(each.id, each.in_flight) for each in report.endpoints] == [("r1", 3), ("r2", 1)]


def test_open_sequences_are_told_beside_requests():
    """Also where nothing is in flight."""
    report = report_of("picker-1", {"r2": 1}, sequences={"r1": 2, "r2": 3})
    assert [(each.id, each.in_flight, each.sequences) for each in report.endpoints] == [
        ("r1", 0, 2),
        ("r2", 1, 3),
    ]


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


class Merging(report_pb2_grpc.PickerReportsServicer):
    """Merges sessions of rollouts as the control server does; ends each stream after a few."""

    def __init__(self):
        self.merged: dict[int, SessionRecord] = {}
        self.until: dict[str, float] = {}
        self.streams = 0
        self.heard = asyncio.Event()

    async def Report(self, request_iterator, _):  # noqa: N802 - gRPC's name
        self.streams += 1
        count = 0
        async for report in request_iterator:
            for message in report.canaries:
                until = self.until.get(report.picker_id, 0.0)
                self.until[report.picker_id] = max(until, message.until_seconds)
                for told in map(_record, message.sessions):
                    known = self.merged.setdefault(told.digest, told)
                    self.merged[told.digest] = earlier(known, told)
                count += 1
            self.heard.set()
            # What was written behind this report is lost.
            if count == 2 and self.streams < 6:
                break
        return report_pb2.ReportSummary()


def _record(told) -> SessionRecord:
    failure = told.failure if told.HasField("failure") else None
    return SessionRecord(
        told.digest,
        told.begun_unix_ms,
        told.step,
        told.canary,
        failure=None if failure is None else SessionFailure(failure.minute, failure.step),
    )


async def test_sessions_of_two_workers_survive_lost_streams(monkeypatch):
    """Each session is one, with the earliest beginning and failure that any worker saw."""
    monkeypatch.setattr(Backoff, "delay_s", lambda _: 0.001)
    monkeypatch.setattr(canaries, "CANARY_S", 0.0)
    server, servicer = grpc.aio.server(), Merging()
    report_pb2_grpc.add_PickerReportsServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    workers = []
    for _ in range(2):
        workers.append(CanarySessions(-KNOWN_S))
        workers[-1].set_arms(Arms("r1", "v2", "v1", 0), 0.0)
    wanted = {}
    async with (
        asyncio.timeout(60),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        tasks = [
            asyncio.create_task(
                ReportSender(
                    channel,
                    picker=f"picker-1.w{number}",
                    in_flight=dict,
                    rng=lambda: 0.0,
                    interval_s=0.001,
                    canaries=CanaryReports({"llm": sessions}, time.monotonic, time.time),
                ).run()
            )
            for number, sessions in enumerate(workers)
        ]
        for session in range(200):
            for number, sessions in enumerate(workers):
                at = 100.0 + session + number * 0.5
                ticket = 1 + session
                sessions.begins(ticket, session, "v1", at, at)
                sessions.ended(ticket, at + 60.0 * number, failed=session % 3 == 0, good=True)
            failure = SessionFailure((100 + session) // 60, 0) if session % 3 == 0 else None
            wanted[session] = SessionRecord(
                session, 1000 * (100 + session), 0, canary=False, failure=failure
            )
            if session % 20 == 0:
                servicer.heard.clear()
                await servicer.heard.wait()
        while servicer.merged != wanted or servicer.streams < 6 or len(servicer.until) < 2:
            servicer.heard.clear()
            await servicer.heard.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await server.stop(0)


class FakeDetails:
    """Details of a hundred replicas with long names, which change with every look."""

    def __init__(self) -> None:
        self.conditions_changed = False
        self.begun = 0
        self.added: list[bool] = []

    def begin(self) -> None:
        self.begun += 1

    def add(self, report, *, traffic: bool) -> None:
        self.added.append(traffic)
        for name in NAMES:
            report.replicas.replicas.add(pool="large-llm", id=name, reading_age_ms=1500)
            if traffic:
                report.traffic.endpoints.add(
                    pool="large-llm", id=name, requests=10**6, failed=10**4
                )
        for number in range(4) if traffic else ():
            every = report_pb2.Histogram(buckets=range(60), counts=[10**5] * 60)
            report.traffic.variants.add(
                pool="large-llm", variant=f"v{number}", first_byte=every, duration=every
            )


NAMES = [f"replica-{number:03}.infer.svc:8001" for number in range(100)]


class _Recorder:
    """A call that keeps the sizes of what is written."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.over = False

    def done(self) -> bool:
        return self.over

    async def write(self, report) -> None:
        self.written.append(report.ByteSize())

    def cancel(self) -> None:
        self.over = True


async def _minute(details, in_flight, *, seconds: float = 60.0) -> list[int]:
    """Return the sizes of the reports of a minute, on a clock that only sleeps advance."""
    now, call = [0.0], _Recorder()

    async def sleep(pause: float) -> None:
        now[0] += pause
        call.over = now[0] >= seconds

    sender = ReportSender(
        None,
        picker="picker-1",
        in_flight=in_flight,
        rng=lambda: 0.0,
        details=details,
        clock=lambda: now[0],
        sleep=sleep,
        call=lambda: call,
    )
    await sender.report()
    return call.written


async def test_all_reports_of_a_hundred_replicas_stay_below_the_bound():
    """20 KB/s with the framing of HTTP/2 (9 + 5 bytes and more each), while all loads change."""
    numbers, details = itertools.count(), FakeDetails()
    sizes = await _minute(details, lambda: {name: 1 + next(numbers) for name in NAMES})
    assert sum(sizes) + 64 * len(sizes) < 20_000 * 60
    assert len(sizes) > 60, "drains wait for these reports"
    assert 12 <= details.added.count(True) <= 13


async def test_traffic_is_reported_without_a_change_of_loads():
    """Every five seconds, also where nothing is in flight."""
    details = FakeDetails()
    sizes = await _minute(details, dict, seconds=30.0)
    assert details.added == [True] * 6
    assert len(sizes) == 6
    assert details.begun == 1


async def test_a_changed_condition_is_reported_at_once():
    """An operator must not wait for the next round, and counts need not come with it."""
    details = FakeDetails()

    def loads() -> dict[str, int]:
        details.conditions_changed = len(details.added) == 1
        return {}

    await _minute(details, loads, seconds=1.0)
    assert details.added == [True, False]
