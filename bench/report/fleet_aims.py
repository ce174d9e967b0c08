"""Targets of the suite ``fleet``: Tidegate compared with each peer, paired by seed. Pure functions.

A target is reached if the interval against every peer is on the good side of the bound, missed if
the interval against any peer is on the bad side, and otherwise undecided. A peer with one seed has
no interval: it cannot decide a target, but a peer that looks better makes it undecided.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.report.aim import NOTHING, REPORTED, Aim
from bench.report.paired import Compared, by_seed, difference, ratio

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TIDEGATE: Final = "tidegate"
NO_WORSE: Final = 0.02
"""Tolerance relative to the best peer on workloads without shared prefixes."""
IN_TIME: Final = ("goodput",)
_NUMBERS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("TTFT mean", ("ttft", "mean")),
    ("TTFT p99", ("ttft", "p99")),
    ("e2e mean", ("e2e", "mean")),
    ("in time", IN_TIME),
)
_SLOWED: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("TTFT mean", ("phase", "ttft", "mean")),
    ("TTFT p99", ("phase", "ttft", "p99")),
    ("e2e mean", ("phase", "e2e", "mean")),
)


@dataclass(frozen=True, slots=True)
class _Beside:
    """Tidegate compared with one peer; ``compared`` is lower if Tidegate is better."""

    peer: str
    ours: float
    theirs: float
    compared: Compared
    better: bool | None
    """``None`` if the interval contains the bound or does not exist."""
    looks_better: bool

    @property
    def rank(self) -> tuple[int, float]:
        """Return a sort key; the worst comparison for Tidegate is the highest."""
        blocks = 2 if self.better is False else self.better is None and not self.looks_better
        return (int(blocks), self.compared.mean)


def fleet_aims(suite: Mapping[str, Any] | None) -> list[Aim]:
    """Return the targets of every workload and load, then those of the faults."""
    if not suite:
        name = "fleet: better than every peer"
        return [Aim(name, "TTFT mean and p99, e2e and in time", NOTHING, None), _lost(())]
    made = []
    cells: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for row in suite["rows"]:
        if not row["fault"]:
            cells.setdefault((row["workload"], row["load"]), []).append(row)
    for (workload, load), rows in cells.items():
        rich = suite["workloads"][workload]["cache_rich"]
        wanted = "better than every peer" if rich else f"within {NO_WORSE:.0%} of the best peer"
        for label, path in _NUMBERS:
            name = f"{workload} at {load:.0%}: {label}"
            made.append(_aim(name, wanted, _besides(rows, path, rich=rich), path))
    faulty = [row for row in suite["rows"] if row["fault"]]
    slowed = [row for row in faulty if row["fault"] == "slow" and "phase" in row]
    for label, path in _SLOWED if slowed else ():
        name = f"a replica slowed, requests from then on: {label}"
        made.append(_aim(name, REPORTED, _besides(slowed, path, rich=True), path))
    return [*made, _lost([row for row in faulty if row["contender"] == TIDEGATE])]


def _besides(
    rows: Sequence[Mapping[str, Any]], path: tuple[str, ...], *, rich: bool
) -> list[_Beside]:
    values = {}
    for contender in {row["contender"]: None for row in rows}:
        if contender.startswith(f"{TIDEGATE}-"):
            continue  # another form of Tidegate is not a peer
        values[contender] = by_seed([row for row in rows if row["contender"] == contender], *path)
    ours = values.pop(TIDEGATE, {})
    made = []
    for peer, theirs in values.items():
        if path == IN_TIME:
            compared, bound = difference(theirs, ours), 0.0 if rich else NO_WORSE
        else:
            compared, bound = ratio(ours, theirs), 1.0 if rich else 1.0 + NO_WORSE
        if compared is None:
            continue
        # If all requests are in time, neither can be better.
        perfect = path == IN_TIME and {*ours.values(), *theirs.values()} == {1.0}
        several = compared.seeds > 1
        made.append(
            _Beside(
                peer,
                statistics.median(ours.values()),
                statistics.median(theirs.values()),
                compared,
                (perfect or compared.below(bound)) if several else None,
                perfect or compared.mean < bound,
            )
        )
    return made


def _aim(name: str, wanted: str, besides: Sequence[_Beside], path: tuple[str, ...]) -> Aim:
    if not besides:
        return Aim(name, wanted, NOTHING, None)
    worst = max(besides, key=lambda each: each.rank)
    several = [each for each in besides if each.compared.seeds > 1]
    if any(each.better is False for each in several):
        return Aim(name, wanted, _told(worst, path), False, f"{worst.peer} is ahead")
    if not several:
        return Aim(name, wanted, _told(worst, path), None, "one seed: no interval")
    if any(each.better is None for each in several):
        return Aim(name, wanted, _told(worst, path), None, "the interval crosses the bound")
    if not all(each.looks_better for each in besides):
        why = f"{worst.peer} has one seed only and looks better"
        return Aim(name, wanted, _told(worst, path), None, why)
    return Aim(name, wanted, _told(worst, path), True)


def _told(beside: _Beside, path: tuple[str, ...]) -> str:
    found = beside.compared
    seeds = f"{found.seeds} seed{'s' * (found.seeds > 1)}"
    interval = ""
    if path == IN_TIME:  # reported as ours minus theirs
        if found.low is not None and found.high is not None:
            interval = f", {_points(found.high)} to {_points(found.low)}"
        values = f"{beside.ours:.1%}; {beside.peer} {beside.theirs:.1%}"
        return f"{values} ({_points(found.mean)} points{interval}; {seeds})"
    if found.low is not None and found.high is not None:
        interval = f", {found.low - 1:+.0%} to {found.high - 1:+.0%}"
    values = f"{beside.ours:.3g} s; {beside.peer} {beside.theirs:.3g} s"
    return f"{values} ({found.mean - 1:+.1%}{interval}; {seeds})"


def _points(share: float) -> str:
    """Format theirs minus ours as ours minus theirs, in percentage points; zero has no sign."""
    return f"{-100 * share + 0.0:+.1f}"


def _lost(rows: Sequence[Mapping[str, Any]]) -> Aim:
    name, wanted = "fault phases: requests lost whose answer had not begun", "0"
    if not rows:
        return Aim(name, wanted, NOTHING, None)
    lost = sum(row["failed_before"] for row in rows)
    begun = sum(row["failed_begun"] for row in rows)
    got = f"{lost} of {sum(row['requests'] for row in rows)}; {begun} cut in their answer"
    return Aim(name, wanted, got, lost == 0, "" if lost == 0 else _kinds(rows))


def _kinds(rows: Iterable[Mapping[str, Any]]) -> str:
    return "; ".join(f"{row['fault']}: {row['errors']}" for row in rows if row["errors"])
