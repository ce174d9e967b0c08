"""The pickers' reports: requests in flight, for which drains wait, and findings of sick replicas.

Rules:

1. Each report replaces its picker's counts and findings. They are dropped when the stream ends.
2. If a picker has two streams, the newer one counts: a picker that reconnects opens a new stream
   before the end of its old one is detected.
3. The pickers of a group count as one: a finding of several of them counts once.
4. A report that exceeds a bound or names no picker ends its stream with INVALID_ARGUMENT.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc

from tidegate_api.fleet.v1 import report_pb2, report_pb2_grpc
from xds_server.fleet.findings import Place
from xds_server.protocol.publication import PickerLoad

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.fleet.findings import Findings

MAX_PICKERS: Final = 1024
"""Most pickers that report at a time."""

MAX_ENDPOINTS: Final = 65_536
"""Most endpoints in one report."""

MAX_FINDINGS: Final = 20_000
"""Most sick replicas in one report."""

MAX_CONDITIONS: Final = 8
"""Most conditions of one replica."""

MAX_ID_CHARS: Final = 256
MAX_CONDITION_CHARS: Final = 64


class _Latest(NamedTuple):
    """A picker's last report, and the number of its stream."""

    stream: int
    load: PickerLoad
    findings: dict[Place, tuple[str, ...]]
    group: str = ""


class PickerReports(report_pb2_grpc.PickerReportsServicer):
    """gRPC service ``PickerReports``, and the last report of each picker.

    Args:
        changed: Called after each report, and when a picker's stream ends.
        on_findings: Called when a picker's findings have changed.
    """

    def __init__(
        self, changed: Callable[[], None], on_findings: Callable[[], None] = lambda: None
    ) -> None:
        self._changed = changed
        self._on_findings = on_findings
        self._streams = itertools.count(1)
        self._latest: dict[str, _Latest] = {}

    def loads(self) -> dict[str, PickerLoad]:
        """Return the requests in flight of each reporting picker, by picker id."""
        return {picker: latest.load for picker, latest in self._latest.items()}

    def in_flight(self) -> dict[str, int]:
        """Return endpoint id -> requests in flight, summed over the pickers."""
        total: dict[str, int] = {}
        for latest in self._latest.values():
            for endpoint, count in latest.load.in_flight.items():
                total[endpoint] = total.get(endpoint, 0) + count
        return total

    def findings(self) -> list[Findings]:
        """Return the findings of each group of pickers that has any."""
        groups: dict[str, dict[Place, tuple[str, ...]]] = {}
        for picker, latest in self._latest.items():
            if latest.findings:
                groups.setdefault(latest.group or picker, {}).update(latest.findings)
        return list(groups.values())

    async def Report(self, request_iterator: Any, context: Any) -> report_pb2.ReportSummary:  # noqa: N802 - gRPC's name
        """Receive one picker's reports until its stream ends (gRPC)."""
        stream, picker = next(self._streams), ""
        try:
            async for report in request_iterator:
                picker = picker or report.picker_id
                problem = self._problem(picker, report)
                if problem:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
                if self._owner(picker) <= stream:
                    self._take(picker, stream, report)
        finally:
            if self._owner(picker) == stream:
                last = self._latest.pop(picker)
                self._changed()
                if last.findings:
                    self._on_findings()
        return report_pb2.ReportSummary()

    def _take(self, picker: str, stream: int, report: report_pb2.PickerReport) -> None:
        counts = {e.id: e.in_flight for e in report.endpoints if e.in_flight}
        findings = {
            Place(each.pool, each.id, each.incarnation): tuple(each.conditions)
            for each in report.findings
        }
        before = self._latest.get(picker)
        load = PickerLoad(counts, report.taken)
        self._latest[picker] = _Latest(stream, load, findings, report.group)
        self._changed()
        if findings != (before.findings if before else {}):
            self._on_findings()

    def _owner(self, picker: str) -> int:
        return self._latest[picker].stream if picker in self._latest else 0

    def _problem(self, picker: str, report: report_pb2.PickerReport) -> str:
        if not picker or max(map(len, (picker, report.group, report.taken))) > MAX_ID_CHARS:
            return (
                f"picker_id must have 1 to {MAX_ID_CHARS} characters, group and taken at most "
                f"{MAX_ID_CHARS}"
            )
        if picker not in self._latest and len(self._latest) >= MAX_PICKERS:
            return f"{MAX_PICKERS} pickers are connected already"
        if len(report.endpoints) > MAX_ENDPOINTS:
            return f"more than {MAX_ENDPOINTS} endpoints in one report"
        if len(report.findings) > MAX_FINDINGS:
            return f"more than {MAX_FINDINGS} findings in one report"
        for each in report.findings:
            names = each.conditions
            if len(names) > MAX_CONDITIONS or any(len(n) > MAX_CONDITION_CHARS for n in names):
                return (
                    f"a finding has more than {MAX_CONDITIONS} conditions,"
                    f" or one of more than {MAX_CONDITION_CHARS} characters"
                )
        return ""
