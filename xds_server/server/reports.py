"""The pickers' reports: requests in flight, for which drains wait, findings, traffic.

Rules:

1. Each report replaces its picker's counts and findings. They are dropped when the stream ends.
2. If a picker has two streams, the newer one counts: a picker that reconnects opens a new stream
   before the end of its old one is detected.
3. The pickers of a group count as one: a finding of several of them counts once.
4. A report that exceeds a bound or names no picker ends its stream with INVALID_ARGUMENT, and
   nothing of it is kept.
5. Traffic, states and models of replicas are passed on to their books
   (``xds_server.applications.traffic``); reports without them change nothing there.
"""

from __future__ import annotations

import itertools
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc

from tidegate_api.fleet.v1 import report_pb2, report_pb2_grpc
from xds_server.applications.traffic.passes import PassBook
from xds_server.applications.traffic.placements import PlacementBook
from xds_server.applications.traffic.reading import (
    ReportError,
    ToldSessions,
    read_canaries,
    read_placements,
    read_queues,
    read_states,
    read_traffic,
)
from xds_server.applications.traffic.replicas import ReplicaBook
from xds_server.applications.traffic.stopping import PickerUse
from xds_server.fleet.findings import Place
from xds_server.protocol.publication import PickerLoad
from xds_server.server.group import PickerGroup
from xds_server.server.inquiries import Inquiries

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from xds_server.applications.traffic.book import TrafficBook
    from xds_server.applications.traffic.inquiry import FoundRequest
    from xds_server.fleet.findings import Findings

MAX_PICKERS: Final = 1024
"""Most pickers that report at a time."""

MAX_ENDPOINTS: Final = 65_536
"""Most endpoints in one report."""

MAX_FINDINGS: Final = 20_000
"""Most sick replicas in one report."""

MAX_CONDITIONS: Final = 8
"""Most conditions of one replica."""

MAX_PASSES: Final = 32
"""Most reasons of requests without a pick in one report."""

MAX_MISSING: Final = 64
"""Most members of its group that a picker may miss."""
MAX_GONE: Final = 64
"""Most pickers that are remembered after their streams have ended."""

MAX_ID_CHARS: Final = 256
MAX_CONDITION_CHARS: Final = 64


class _Latest(NamedTuple):
    """A picker's last report, and the number of its stream."""

    stream: int
    load: PickerLoad
    findings: dict[Place, tuple[str, ...]]
    group: str = ""
    passes: Mapping[str, int] = MappingProxyType({})
    at: float = 0.0
    """When it arrived, monotonic seconds."""
    sequences: Mapping[str, int] = MappingProxyType({})
    leaving: Mapping[tuple[str, str], int] = MappingProxyType({})
    relief: int = 0
    missing: Sequence[str] = ()


class PickerReports(report_pb2_grpc.PickerReportsServicer):
    """gRPC service ``PickerReports``, and the last report of each picker.

    Args:
        changed: Called after each report, and when a picker's stream ends.
        on_findings: Called when a picker's findings have changed.
        clock: Monotonic seconds.
        not_named: Returns why a call's peer may not speak as a picker, by its context and the
            picker's id; ``None`` = it may.
    """

    def __init__(
        self,
        changed: Callable[[], None],
        on_findings: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        not_named: Callable[[Any, str], str | None] = lambda *_: None,
    ) -> None:
        self._not_named = not_named
        self._changed = changed
        self._clock = clock
        self._gone: dict[str, None] = {}
        """Pickers whose streams have ended, the last one last."""
        self._on_findings = on_findings
        self._streams = itertools.count(1)
        self._latest: dict[str, _Latest] = {}
        self.replicas = ReplicaBook(clock)
        """States of the replicas, as pickers report them."""
        self.passed = PassBook(clock)
        """Requests without a pick, over the last minute."""
        self.inquiries = Inquiries(not_named)
        """Questions to the pickers."""
        self.group = PickerGroup(not_named, clock)
        """Who places new sequences, of pickers that are a group."""
        self.placements = PlacementBook(clock)
        """Which replica has which model, as pickers report it."""
        self.traffic: TrafficBook | None = None
        """What became of requests; set once the fleet is known."""
        self.on_sessions: Callable[[str, ToldSessions], None] = lambda *_: None
        """Takes what a picker tells of the sessions of a rollout."""

    def loads(self) -> dict[str, PickerLoad]:
        """Return the requests in flight of each reporting picker, by picker id."""
        return {picker: latest.load for picker, latest in self._latest.items()}

    def uses(self) -> dict[str, PickerUse]:
        """Return what each reporting picker said last, by picker id."""
        now = self._clock()
        return {
            picker: PickerUse(
                now - each.at, each.load.taken, each.load.in_flight, each.sequences, each.leaving
            )
            for picker, each in self._latest.items()
        }

    def gone(self) -> list[str]:
        """Return the pickers whose streams have ended, the last one first."""
        return list(reversed(self._gone))

    def in_flight(self) -> dict[str, int]:
        """Return endpoint id -> requests in flight, summed over the pickers."""
        total: dict[str, int] = {}
        for latest in self._latest.values():
            for endpoint, count in latest.load.in_flight.items():
                total[endpoint] = total.get(endpoint, 0) + count
        return total

    def passes(self) -> dict[str, Mapping[str, int]]:
        """Return the requests without a pick by reason, of each picker that had any."""
        return {
            picker: latest.passes
            for picker, latest in sorted(self._latest.items())
            if latest.passes
        }

    def relief(self) -> dict[str, int]:
        """Return what pickers leave out that cannot do all, by picker."""
        return {
            picker: latest.relief
            for picker, latest in sorted(self._latest.items())
            if latest.relief
        }

    def missing(self) -> dict[str, Sequence[str]]:
        """Return which members of their group pickers miss, and why, by picker."""
        return {
            picker: latest.missing
            for picker, latest in sorted(self._latest.items())
            if latest.missing
        }

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
                if not picker:
                    for each in {report.picker_id, report.group or report.picker_id}:
                        if reason := self._not_named(context, each):
                            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
                picker = picker or report.picker_id
                problem = self._problem(picker, report)
                if not problem and self._owner(picker) <= stream:
                    problem = self._take(picker, stream, report)
                if problem:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        finally:
            if self._owner(picker) == stream:
                last = self._latest.pop(picker)
                self._gone[picker] = None
                while len(self._gone) > MAX_GONE:
                    del self._gone[next(iter(self._gone))]
                self.replicas.gone(picker)
                self.placements.gone(picker)
                self._changed()
                if last.findings:
                    self._on_findings()
        return report_pb2.ReportSummary()

    async def Answer(  # type: ignore[override]  # noqa: N802 - gRPC allows a handler that writes by itself
        self, request_iterator: Any, context: Any
    ) -> None:
        """Receive one picker's answers to inquiries until its stream ends (gRPC)."""
        await self.inquiries.serve(request_iterator, context)

    async def Join(  # type: ignore[override]  # noqa: N802 - gRPC allows a handler that writes by itself
        self, request_iterator: Any, context: Any
    ) -> None:
        """Receive how one picker stands in its group until its stream ends (gRPC)."""
        await self.group.serve(request_iterator, context)

    async def find(self, request: str) -> FoundRequest:
        """Ask all pickers for a request; see ``Inquiries.ask``."""
        return await self.inquiries.ask(request, sorted(self._latest))

    def _take(self, picker: str, stream: int, report: report_pb2.PickerReport) -> str:
        """Take a report; return what is wrong with it."""
        try:
            counted = read_traffic(report.traffic) if report.HasField("traffic") else None
            states = read_states(report.replicas) if report.HasField("replicas") else None
            queues = read_queues(report.replicas)
            told = report.HasField("placements")
            placements = read_placements(report.placements) if told else None
            sessions = read_canaries(report.canaries)
        except ReportError as error:
            return str(error)
        if states is not None:
            self.replicas.take(picker, states, report.group, queues)
        for each in sessions:
            self.on_sessions(picker, each)
        if placements is not None:
            self.placements.take(picker, placements)
        if counted is not None and self.traffic is not None:
            self.traffic.take(picker, counted)
        counts = {e.id: e.in_flight for e in report.endpoints if e.in_flight}
        findings = {
            Place(each.pool, each.id, each.incarnation): tuple(each.conditions)
            for each in report.findings
        }
        before = self._latest.get(picker)
        load = PickerLoad(counts, report.taken)
        passes = dict(report.passes)
        self.passed.take(picker, passes)
        sequences = {e.id: e.sequences for e in report.endpoints if e.sequences}
        leaving = {(e.id, e.model): e.in_flight for e in report.leaving if e.in_flight}
        self._gone.pop(picker, None)
        self._latest[picker] = _Latest(
            stream,
            load,
            findings,
            report.group,
            passes,
            self._clock(),
            sequences,
            leaving,
            report.relief,
            tuple([each[:MAX_ID_CHARS] for each in report.missing_members]),
        )
        self._changed()
        if findings != (before.findings if before else {}):
            self._on_findings()
        return ""

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
        for what, listed, most in (
            ("endpoints", report.endpoints, MAX_ENDPOINTS),
            ("findings", report.findings, MAX_FINDINGS),
            ("models that leave", report.leaving, MAX_ENDPOINTS),
            ("missing members", report.missing_members, MAX_MISSING),
        ):
            if len(listed) > most:
                return f"more than {most} {what} in one report"
        if any(_too_long(each.conditions, MAX_CONDITIONS) for each in report.findings):
            return (
                f"a finding has more than {MAX_CONDITIONS} conditions,"
                f" or one of more than {MAX_CONDITION_CHARS} characters"
            )
        if _too_long(report.passes, MAX_PASSES):
            return (
                f"passes have more than {MAX_PASSES} reasons,"
                f" or one of more than {MAX_CONDITION_CHARS} characters"
            )
        return ""


def _too_long(names: Collection[str], most: int) -> bool:
    return len(names) > most or any(len(name) > MAX_CONDITION_CHARS for name in names)
