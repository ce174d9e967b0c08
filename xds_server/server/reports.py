"""The pickers' reports: requests in flight, on which drains wait, and the sick replicas they find.

Rules:

1. Each report replaces its picker's counts and findings; at the end of its stream they are
   forgotten.
2. Of two streams of one picker the newer counts: a picker that came back has a new stream before
   its old one is known dead.
3. Pickers of one group find as one: what any of them finds counts once.
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
MAX_ENDPOINTS: Final = 65_536
"""Endpoints in one report."""
MAX_FINDINGS: Final = 20_000
"""Sick replicas in one report."""
MAX_CONDITIONS: Final = 8
"""Names of one replica's conditions."""

MAX_ID_CHARS: Final = 256
MAX_CONDITION_CHARS: Final = 64


class _Said(NamedTuple):
    """What a picker said last."""

    stream: int
    load: PickerLoad
    findings: dict[Place, tuple[str, ...]]
    group: str = ""


class PickerReports(report_pb2_grpc.PickerReportsServicer):
    """Follows every picker's reports.

    Also the gRPC service itself.

    Args:
        changed: Called after each report.
        on_findings: Called after each report whose findings differ from those before.
    """

    def __init__(
        self, changed: Callable[[], None], on_findings: Callable[[], None] = lambda: None
    ) -> None:
        self._changed = changed
        self._on_findings = on_findings
        self._streams = itertools.count(1)
        self._said: dict[str, _Said] = {}

    def loads(self) -> dict[str, PickerLoad]:
        """Return what each reporting picker said last of its work."""
        return {picker: said.load for picker, said in self._said.items()}

    def in_flight(self) -> dict[str, int]:
        """Return endpoint id -> requests in flight, summed over the pickers."""
        total: dict[str, int] = {}
        for said in self._said.values():
            for endpoint, count in said.load.in_flight.items():
                total[endpoint] = total.get(endpoint, 0) + count
        return total

    def findings(self) -> list[Findings]:
        """Return what each group of pickers finds sick."""
        groups: dict[str, dict[Place, tuple[str, ...]]] = {}
        for picker, said in self._said.items():
            if said.findings:
                groups.setdefault(said.group or picker, {}).update(said.findings)
        return list(groups.values())

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
                    self._take(picker, stream, report)
        finally:
            if self._owner(picker) == stream:
                gone = self._said.pop(picker)
                self._changed()
                if gone.findings:
                    self._on_findings()
        return report_pb2.ReportSummary()

    def _take(self, picker: str, stream: int, report: report_pb2.PickerReport) -> None:
        counts = {e.id: e.in_flight for e in report.endpoints if e.in_flight}
        findings = {
            Place(each.pool, each.id, each.incarnation): tuple(each.conditions)
            for each in report.findings
        }
        before = self._said.get(picker)
        load = PickerLoad(counts, report.taken)
        self._said[picker] = _Said(stream, load, findings, report.group)
        self._changed()
        if findings != (before.findings if before else {}):
            self._on_findings()

    def _owner(self, picker: str) -> int:
        return self._said[picker].stream if picker in self._said else 0

    def _problem(self, picker: str, report: report_pb2.PickerReport) -> str:
        if not picker or max(map(len, (picker, report.group, report.taken))) > MAX_ID_CHARS:
            return (
                f"picker_id must have 1 to {MAX_ID_CHARS} characters, group and taken at most that"
            )
        if picker not in self._said and len(self._said) >= MAX_PICKERS:
            return f"{MAX_PICKERS} pickers report already"
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
