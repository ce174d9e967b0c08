"""Input and output files of the load process.

A plan file is one line of JSON, then the concatenated requests; entries are offsets into them. A
result file is one JSON object with columns, one value per request in the order of the plan.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

OK: Final = "ok"


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One phase of load on one address.

    With ``at``, the loop is open: request ``i`` is sent ``at[i]`` seconds after the start,
    independent of other requests, and its latencies count from then. Without ``at``, the loop is
    closed: ``connections`` clients send requests sequentially for ``seconds``.
    """

    address: str
    """``ip:port``."""
    which: Sequence[int]
    """Index into ``requests`` of each entry."""
    at: Sequence[float] = ()
    """Intended times, seconds from the start, ascending."""
    connections: int = 1
    seconds: float = 0.0
    timeout_s: float = 30.0
    """Time limit of a request from its intended time, seconds."""
    ends_with: str = ""
    """End of a complete response; a response without it counts as cut."""
    requests: Sequence[bytes] = field(default=(), repr=False)


@dataclass(slots=True)
class Results:
    """Results of each request; times in seconds from the start of the phase."""

    intended: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    first: list[float | None] = field(default_factory=list)
    """Time of the first byte of the response body."""
    end: list[float | None] = field(default_factory=list)
    outcome: list[str] = field(default_factory=list)
    """``ok``, ``status 503``, ``connect``, ``closed`` (before the response), ``cut`` (during it)
    or ``timeout``."""
    seconds: float = 0.0
    began: float = 0.0
    """Start of the phase by ``time.perf_counter``, which all processes of a machine share."""
    cpu_s: float = 0.0
    """CPU time of the load process in this phase, seconds."""

    @property
    def errors(self) -> dict[str, int]:
        """Return the number of failed requests by kind."""
        found: dict[str, int] = {}
        for outcome in self.outcome:
            if outcome != OK:
                found[outcome] = found.get(outcome, 0) + 1
        return found

    def latencies(self, skip: int = 0) -> list[float]:
        """Return the times from intended sending to the end of complete responses, seconds."""
        rows = zip(self.intended, self.end, self.outcome, strict=True)
        return [
            end - intended
            for intended, end, outcome in list(rows)[skip:]
            if outcome == OK and end is not None
        ]

    def first_bytes(self, skip: int = 0) -> list[float]:
        """Return the times from intended sending to the first byte of whole responses, seconds."""
        rows = zip(self.intended, self.first, self.outcome, strict=True)
        return [
            first - intended
            for intended, first, outcome in list(rows)[skip:]
            if outcome == OK and first is not None
        ]

    def lag(self, share: float = 0.99) -> float:
        """Return a percentile of the delay of sending, which the load client itself causes."""
        late = sorted(
            sent - intended for sent, intended in zip(self.sent, self.intended, strict=True)
        )
        return late[min(len(late) - 1, int(share * len(late)))] if late else 0.0


def write_plan(path: Path, plan: LoadPlan) -> None:
    """Write a plan file."""
    head = {
        name: list(value) if isinstance(value, (list, tuple, range)) else value
        for name, value in ((each, getattr(plan, each)) for each in plan.__slots__)
        if name != "requests"
    }
    head["sizes"] = [len(request) for request in plan.requests]
    with path.open("wb") as file:
        file.write(orjson.dumps(head) + b"\n")
        file.writelines(plan.requests)


def read_plan(path: Path) -> LoadPlan:
    """Read a plan file."""
    with path.open("rb") as file:
        head: dict[str, Any] = orjson.loads(file.readline())
        requests = [file.read(size) for size in head.pop("sizes")]
    return LoadPlan(**head, requests=requests)


def write_results(path: Path, results: Results) -> None:
    """Write a result file."""
    path.write_bytes(orjson.dumps(asdict(results)))


def read_results(path: Path) -> Results:
    """Read a result file."""
    return Results(**orjson.loads(path.read_bytes()))
