"""Tells the control server how many requests are in flight, on which drains wait, and who is sick.

Law: the first report of a stream is full, and each later one too; one is sent when what it says
differs from what was last sent, at most every `INTERVAL_S`. A lost stream is opened again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog

from ext_proc.backoff import Backoff
from protos.tidegate.fleet.v1 import report_pb2, report_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ext_proc.routing.conditions import Finding

INTERVAL_S: Final = 0.1

_log = structlog.stdlib.get_logger("ext_proc.reports")


class Reporter:
    """One ``PickerReports`` stream, kept open.

    Args:
        channel: To the control server.
        picker: This picker's id, as on ADS.
        in_flight: Returns the requests in flight by endpoint id.
        findings: Returns the replicas that this picker finds sick.
        group: Name that it shares with those that find as one with it; empty = nobody.
        rng: A number in [0, 1), for the jitter.
        interval_s: Shortest time between two reports.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        picker: str,
        in_flight: Callable[[], Mapping[str, int]],
        rng: Callable[[], float],
        findings: Callable[[], Sequence[Finding]] = tuple,
        group: str = "",
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._stub: Any = report_pb2_grpc.PickerReportsStub(channel)
        self._picker = picker
        self._in_flight = in_flight
        self._findings = findings
        self._group = group
        self._backoff = Backoff(rng)
        self._interval_s = interval_s

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            try:
                await self._report()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                _log.debug("report_stream_lost", reason=type(error).__name__)
            await asyncio.sleep(self._backoff.delay_s())

    async def _report(self) -> None:
        call = self._stub.Report()
        sent: tuple[dict[str, int], Sequence[Finding]] | None = None
        try:
            # done() turns true when the server ends the stream: writes alone would not tell.
            while not call.done():
                counts = {name: count for name, count in self._in_flight().items() if count}
                news = (counts, self._findings())
                if news != sent:
                    await call.write(report_of(self._picker, *news, group=self._group))
                    sent = news
                    self._backoff.reset()
                await asyncio.sleep(self._interval_s)
        finally:
            call.cancel()


def report_of(
    picker: str, counts: Mapping[str, int], findings: Sequence[Finding] = (), *, group: str = ""
) -> report_pb2.PickerReport:
    """Write a full report."""
    return report_pb2.PickerReport(
        picker_id=picker,
        group=group,
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
