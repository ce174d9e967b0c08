"""Reports to the control server: in-flight requests, on which drains wait, sick replicas, traffic.

Rules:

1. Each report is complete, but for traffic and the states of replicas. One is sent when its content
   differs from the last one sent, at most every `INTERVAL_S`, and less often where it is large: all
   reports together take at most ``BYTES_PER_S`` for each hundred of their endpoints.
2. It names the control server's response that was in force when the requests were counted, so the
   server knows which picks are included. Both are read in one step of the event loop.
3. A lost stream is reopened after a delay, or as soon as ADS is connected again.
4. The sessions of rollouts (``reporting.canaries``) count for no bound of rule 1: they have their
   own.
5. Every ``DETAILS_S``, and with the first report of a stream, a report has the traffic that has
   changed and the states of all replicas; the states also when a condition began or ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog

from tidegate_api.fleet.v1 import report_pb2, report_pb2_grpc
from tidegate_common.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ext_proc.control.inquiries import InquiryAnswerer
    from ext_proc.control.reporting.canaries import CanaryReports
    from ext_proc.control.reporting.details import Details
    from ext_proc.routing.health.conditions import Finding

INTERVAL_S: Final = 0.1
DETAILS_S: Final = 5.0
"""Seconds between two reports of traffic and of the states of replicas."""
BYTES_PER_S: Final = 16_000.0
"""Bytes per second of reports about 100 endpoints, before the framing of HTTP/2."""
MAX_LEAVING: Final = 65_536
"""Most models of replicas in ``PickerReport.leaving``."""
_HUNDRED: Final = 100

_log = structlog.stdlib.get_logger("ext_proc.control.reports")


class ReportSender:
    """One ``PickerReports`` stream, kept open.

    Args:
        channel: Channel to the control server.
        picker: This picker's id, as on ADS.
        in_flight: Returns the requests in flight by endpoint id.
        taken: Returns the nonce of the control server's last response in force.
        findings: Returns the replicas that this picker finds sick.
        passes: Returns the requests without a pick, by reason.
        relief: Returns what the picker leaves out (``routing.relief``).
        missing: Returns the members of its group that it misses, each with the reason.
        group: Name shared by the pickers whose findings count as one; empty = none.
        details: Traffic and states of replicas; ``None`` = they are not reported.
        beside: Answers the control server's questions on a stream of its own; ``None`` = nothing
            does.
        sequences: Returns the open sequences on draining replicas by endpoint id.
        leaving: Returns the requests in flight for models that leave replicas, by endpoint id and
            model.
        canaries: Sessions of rollouts; ``None`` = they are not reported.
        rng: Returns a number in [0, 1), for the jitter.
        interval_s: Minimum seconds between two reports.
        clock: Monotonic seconds.
        sleep: Waits for some seconds.
        call: Opens a stream; by default one of ``channel``.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        picker: str,
        in_flight: Callable[[], Mapping[str, int]],
        rng: Callable[[], float],
        taken: Callable[[], str] = str,
        findings: Callable[[], Sequence[Finding]] = tuple,
        passes: Callable[[], Mapping[str, int]] = dict,
        relief: Callable[[], int] = int,
        missing: Callable[[], Sequence[str]] = tuple,
        group: str = "",
        details: Details | None = None,
        beside: InquiryAnswerer | None = None,
        sequences: Callable[[], Mapping[str, int]] = dict,
        leaving: Callable[[], Mapping[tuple[str, str], int]] = dict,
        canaries: CanaryReports | None = None,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        call: Callable[[], Any] | None = None,
    ) -> None:
        self._call: Callable[[], Any] = (
            report_pb2_grpc.PickerReportsStub(channel).Report if call is None else call
        )
        self._sleep = sleep
        self._picker = picker
        self._in_flight = in_flight
        self._taken = taken
        self._findings = findings
        self._passes = passes
        self._relief = relief
        self._missing = missing
        self._group = group
        self._details = details
        self._beside = beside
        self._sequences = sequences
        self._leaving = leaving
        self._canaries = canaries
        self._clock = clock
        self._backoff = Backoff(rng)
        self._interval_s = interval_s
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Skip the current delay before the next attempt: the control server is reachable."""
        self._wake.set()
        if self._beside is not None:
            self._beside.wake()

    async def run(self) -> None:
        """Report, and answer questions, until cancelled."""
        if self._beside is None:
            await self._report_on()
        else:
            await asyncio.gather(self._report_on(), self._beside.run())

    async def _report_on(self) -> None:
        while True:
            try:
                await self.report()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                _log.debug("report_stream_lost", reason=type(error).__name__)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._backoff.delay_s())

    async def report(self) -> None:
        """Report on one stream until it ends."""
        self._wake.clear()
        call = self._call()
        sent: tuple[Any, ...] | None = None
        details, canaries, due_at = self._details, self._canaries, self._clock()
        if details is not None:
            details.begin()
        if canaries is not None:
            canaries.begin()
        try:
            # done() becomes true when the server ends the stream; writes alone do not show it.
            while not call.done():
                loads = self._in_flight()
                counts = {name: count for name, count in loads.items() if count}
                content = (
                    counts,
                    self._findings(),
                    self._taken(),
                    self._passes(),
                    self._sequences(),
                    self._leaving(),
                    self._relief(),
                    self._missing(),
                )
                due = details is not None and self._clock() >= due_at
                changed = details is not None and details.conditions_changed
                told = canaries is not None and canaries.due
                size = 0
                if content != sent or due or changed or told:
                    report = report_of(self._picker, *content, group=self._group)
                    if details is not None and (due or changed):
                        details.add(report, traffic=due)
                    if due:
                        due_at = self._clock() + DETAILS_S
                    size = report.ByteSize()
                    if canaries is not None and told:
                        canaries.add(report)
                    await call.write(report)
                    if canaries is not None and told:
                        canaries.sent()
                    sent = content
                    self._backoff.reset()
                per_s = BYTES_PER_S * max(len(loads), _HUNDRED) / _HUNDRED
                await self._sleep(max(self._interval_s, size / per_s))
        finally:
            call.cancel()


def report_of(
    picker: str,
    counts: Mapping[str, int],
    findings: Sequence[Finding] = (),
    taken: str = "",
    passes: Mapping[str, int] | None = None,
    sequences: Mapping[str, int] = MappingProxyType({}),
    leaving: Mapping[tuple[str, str], int] = MappingProxyType({}),
    relief: int = 0,
    missing: Sequence[str] = (),
    *,
    group: str = "",
) -> report_pb2.PickerReport:
    """Build a complete report."""
    return report_pb2.PickerReport(
        picker_id=picker,
        group=group,
        taken=taken,
        passes=passes,
        relief=relief,
        missing_members=missing,
        endpoints=[
            report_pb2.EndpointLoad(
                id=name, in_flight=counts.get(name, 0), sequences=sequences.get(name, 0)
            )
            for name in sorted(counts.keys() | sequences.keys())
        ],
        leaving=[
            report_pb2.LeavingLoad(id=name, model=model, in_flight=count)
            for (name, model), count in sorted(leaving.items())[:MAX_LEAVING]
        ],
        findings=[
            report_pb2.Finding(
                pool=each.pool,
                id=each.key.id,
                incarnation=each.key.incarnation,
                conditions=each.conditions,
            )
            for each in findings
        ],
    )
