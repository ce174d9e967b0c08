"""Pickers and control server together: what one counts is what the other tells."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, Self

import grpc
import pytest

from ext_proc.blame.law import RULES
from ext_proc.control import reports as sending
from ext_proc.control.reporting.details import Details
from ext_proc.control.reporting.watch import ReplicaWatch
from ext_proc.control.reports import ReportSender
from ext_proc.observability import traffic as counting
from ext_proc.observability.traffic import Places, TrafficCounts
from support.streams import llm, router
from tidegate_api.fleet.v1 import report_pb2_grpc
from xds_server.applications.traffic.book import SERVICE_KINDS, TrafficBook
from xds_server.applications.traffic.replicas import words
from xds_server.server.reports import PickerReports

STABLE = ("llm", "stable")
R1 = ("llm", "r1")


class ControlServer:
    """The report service on a port, with its books."""

    def __init__(self) -> None:
        self.reports = PickerReports(lambda: None)
        self.reports.traffic = TrafficBook(lambda: ({STABLE, ("llm", "")}, {R1}), time.monotonic)
        self._server = grpc.aio.server()
        report_pb2_grpc.add_PickerReportsServicer_to_server(self.reports, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    @property
    def requests(self) -> int:
        """Requests of the last hour."""
        assert self.reports.traffic is not None
        return sum(sums.requests for _, _, sums in self.reports.traffic.history())

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)


class Picker:
    """What a picker counts and reports."""

    def __init__(self, name: str, life: int) -> None:
        self.name = name
        self.router = router(llm())
        self.traffic = TrafficCounts(Places(self.router.registry).find)
        self.watch = ReplicaWatch(self.router, time.monotonic, time.time)
        self.details = Details(self.traffic, self.watch, life, time.monotonic)

    def serve(self, requests: int, outcome: str = "good") -> None:
        """Count requests."""
        for _ in range(requests):
            self.traffic.ended("llm/stable/http", "10.0.0.1:8080", outcome, 0.1, 0.2)

    @contextlib.asynccontextmanager
    async def reporting(self, server: ControlServer) -> AsyncIterator[None]:
        """Report to a control server."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            sender = ReportSender(
                channel,
                picker=self.name,
                in_flight=dict,
                rng=lambda: 0.0,
                details=self.details,
                interval_s=0.001,
            )
            task = asyncio.create_task(sender.run())
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def until(look: Any) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(60):
        while not look():  # noqa: ASYNC110 - no event to await
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report traffic without pauses."""
    monkeypatch.setattr(sending, "DETAILS_S", 0.0)


async def test_two_pickers_add_up_over_restarts_of_each_and_of_the_control_server() -> None:
    """No request is counted twice, and none that was reported is lost."""
    one, two = Picker("p1", 1), Picker("p2", 2)
    async with ControlServer() as server:
        async with one.reporting(server), two.reporting(server):
            one.serve(5)
            two.serve(7)
            await until(lambda: server.requests == 12)
        async with one.reporting(server):  # the stream broke; all is sent again
            one.serve(1)
            await until(lambda: server.requests == 13)
        two = Picker("p2", 3)  # the process restarted
        async with two.reporting(server):
            two.serve(4)
            await until(lambda: server.requests == 17)
            await asyncio.sleep(0.05)
            assert server.requests == 17
    one.details._began -= 3600.0
    async with ControlServer() as restarted, one.reporting(restarted), two.reporting(restarted):
        await until(lambda: len(restarted.reports.replicas.ages()) == 2)
        one.serve(2)
        await until(lambda: restarted.requests == 4 + 2)  # young counts whole, old ones as a basis


async def test_a_condition_is_told_before_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its cause and the time left, and it ends with the picker's stream."""
    monkeypatch.setattr(sending, "DETAILS_S", 1e6)
    picker = Picker("p1", 1)
    key = picker.router.pools["llm"].endpoints[0].key
    async with ControlServer() as server:
        async with picker.reporting(server):
            await until(server.reports.replicas.ages)
            for _ in range(3):
                picker.router.conditions.bad("llm", key, time.monotonic(), answered=False)
            picker.watch.look()
            await until(lambda: server.reports.replicas.merged()[R1].conditions)
            state = server.reports.replicas.merged()[R1]
            said = words(state, draining=False, held=False, in_flight=0)
            assert said.startswith("ejected ")
            assert said.endswith(" s more: 3 failures")
            assert state.left_alone
        await until(lambda: not server.reports.replicas.ages())


def test_both_services_mean_the_same_failures() -> None:
    """And each is an outcome of the law of blame: another name would never be counted."""
    assert counting.FAILURES == SERVICE_KINDS
    assert {rule.outcome for rule in RULES} == SERVICE_KINDS | {counting.GOOD, "client", "left"}
