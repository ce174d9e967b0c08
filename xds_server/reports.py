"""The pickers' reports of requests in flight, on which drains wait.

Rules:

1. Each report replaces its picker's counts; at the end of its stream they are forgotten.
2. Of two streams of one picker the newer counts: a picker that came back has a new stream before
   its old one is known dead.
3. A report that exceeds a bound or names no picker ends its stream with INVALID_ARGUMENT.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import grpc

from protos.tidegate.fleet.v1 import report_pb2, report_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_PICKERS: Final = 1024
MAX_ENDPOINTS: Final = 65_536
"""Endpoints in one report."""

MAX_ID_CHARS: Final = 256


class PickerReports(report_pb2_grpc.PickerReportsServicer):
    """Follows every picker's reports and calls ``changed`` after each.

    Also the gRPC service itself.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._streams = itertools.count(1)
        self._counts: dict[str, tuple[int, dict[str, int]]] = {}

    @property
    def reporting(self) -> bool:
        """Any picker reports."""
        return bool(self._counts)

    def in_flight(self) -> dict[str, int]:
        """Return endpoint id -> requests in flight, summed over the pickers."""
        total: dict[str, int] = {}
        for _, counts in self._counts.values():
            for endpoint, count in counts.items():
                total[endpoint] = total.get(endpoint, 0) + count
        return total

    async def Report(self, request_iterator: Any, context: Any) -> report_pb2.ReportSummary:  # noqa: N802 - gRPC's name
        """Follow one picker until its stream ends (gRPC)."""
        stream, picker = next(self._streams), ""
        try:
            async for report in request_iterator:
                picker = picker or report.picker_id
                problem = self._problem(picker, report)
                if problem:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
                if self._owner(picker) <= stream:
                    counts = {e.id: e.in_flight for e in report.endpoints if e.in_flight}
                    self._counts[picker] = (stream, counts)
                    self._changed()
        finally:
            if self._owner(picker) == stream:
                del self._counts[picker]
                self._changed()
        return report_pb2.ReportSummary()

    def _owner(self, picker: str) -> int:
        return self._counts[picker][0] if picker in self._counts else 0

    def _problem(self, picker: str, report: report_pb2.PickerReport) -> str:
        if not picker or len(picker) > MAX_ID_CHARS:
            return f"picker_id must have 1 to {MAX_ID_CHARS} characters"
        if picker not in self._counts and len(self._counts) >= MAX_PICKERS:
            return f"{MAX_PICKERS} pickers report already"
        if len(report.endpoints) > MAX_ENDPOINTS:
            return f"more than {MAX_ENDPOINTS} endpoints in one report"
        return ""
