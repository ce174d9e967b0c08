"""Reports in-flight requests, on which drains wait, and sick replicas to the control server.

Rules:

1. Each report is complete. One is sent when its content differs from the last one sent, at most
   every `INTERVAL_S`.
2. It names the control server's response that was in force when the requests were counted, so the
   server knows which picks are included. Both are read in one step of the event loop.
3. A lost stream is reopened after a delay, or as soon as ADS is connected again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog

from tidegate_api.fleet.v1 import report_pb2, report_pb2_grpc
from tidegate_common.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ext_proc.routing.health.conditions import Finding

INTERVAL_S: Final = 0.1

_log = structlog.stdlib.get_logger("ext_proc.control.reports")


class ReportSender:
    """One ``PickerReports`` stream, kept open.

    Args:
        channel: Channel to the control server.
        picker: This picker's id, as on ADS.
        in_flight: Returns the requests in flight by endpoint id.
        taken: Returns the nonce of the control server's last response in force.
        findings: Returns the replicas that this picker finds sick.
        group: Name shared by the pickers whose findings count as one; empty = none.
        rng: Returns a number in [0, 1), for the jitter.
        interval_s: Minimum seconds between two reports.
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
        group: str = "",
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._stub: Any = report_pb2_grpc.PickerReportsStub(channel)
        self._picker = picker
        self._in_flight = in_flight
        self._taken = taken
        self._findings = findings
        self._group = group
        self._backoff = Backoff(rng)
        self._interval_s = interval_s
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Skip the current delay before the next attempt: the control server is reachable."""
        self._wake.set()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            try:
                await self._report()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                _log.debug("report_stream_lost", reason=type(error).__name__)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._backoff.delay_s())

    async def _report(self) -> None:
        self._wake.clear()
        call = self._stub.Report()
        sent: tuple[dict[str, int], Sequence[Finding], str] | None = None
        try:
            # done() becomes true when the server ends the stream; writes alone do not show it.
            while not call.done():
                counts = {name: count for name, count in self._in_flight().items() if count}
                content = (counts, self._findings(), self._taken())
                if content != sent:
                    await call.write(report_of(self._picker, *content, group=self._group))
                    sent = content
                    self._backoff.reset()
                await asyncio.sleep(self._interval_s)
        finally:
            call.cancel()


def report_of(
    picker: str,
    counts: Mapping[str, int],
    findings: Sequence[Finding] = (),
    taken: str = "",
    *,
    group: str = "",
) -> report_pb2.PickerReport:
    """Build a complete report."""
    return report_pb2.PickerReport(
        picker_id=picker,
        group=group,
        taken=taken,
        endpoints=[
            report_pb2.EndpointLoad(id=name, in_flight=count)
            for name, count in sorted(counts.items())
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
