"""What a load process is told and what it tells: files, so that nothing is shared but bytes.

A plan file is one line of JSON, then the requests' bytes end to end; entries point into them. A
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

    With times the loop is open: request ``i`` is sent ``at[i]`` seconds after the start, whatever
    became of the others; its times count from then. Without, it is closed: ``connections`` clients
    take requests in turn, one after the other, for ``seconds``.
    """

    address: str
    """``ip:port``."""
    which: Sequence[int]
    """Which of the ``requests`` each entry sends."""
    at: Sequence[float] = ()
    """Intended times, rising."""
    connections: int = 1
    seconds: float = 0.0
    timeout_s: float = 30.0
    """How long after its intended time a request is given up."""
    ends_with: str = ""
    """What a complete answer ends with; without it the answer counts as cut."""
    requests: Sequence[bytes] = field(default=(), repr=False)


@dataclass(slots=True)
class Results:
    """What became of each request; times in seconds from the start of the phase."""

    intended: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    first: list[float | None] = field(default_factory=list)
    """When the first byte of the answer's body came."""
    end: list[float | None] = field(default_factory=list)
    outcome: list[str] = field(default_factory=list)
    """``ok``, ``status 503``, ``connect``, ``closed`` (before the answer), ``cut`` (in it) or
    ``timeout``."""
    seconds: float = 0.0
    began: float = 0.0
    """The start of the phase by ``time.perf_counter``, which all processes of a machine share."""
    cpu_s: float = 0.0
    """CPU of the load process in this phase."""

    @property
    def errors(self) -> dict[str, int]:
        """Return how many requests failed, by kind."""
        found: dict[str, int] = {}
        for outcome in self.outcome:
            if outcome != OK:
                found[outcome] = found.get(outcome, 0) + 1
        return found

    def latencies(self, skip: int = 0) -> list[float]:
        """Return the seconds from intended sending to the end of each answer that was whole."""
        rows = zip(self.intended, self.end, self.outcome, strict=True)
        return [
            end - intended
            for intended, end, outcome in list(rows)[skip:]
            if outcome == OK and end is not None
        ]

    def first_bytes(self, skip: int = 0) -> list[float]:
        """Return the seconds from intended sending to the first byte, of whole answers."""
        rows = zip(self.intended, self.first, self.outcome, strict=True)
        return [
            first - intended
            for intended, first, outcome in list(rows)[skip:]
            if outcome == OK and first is not None
        ]

    def lag(self, share: float = 0.99) -> float:
        """Return a percentile of how late requests were sent: the load generator's own fault."""
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
