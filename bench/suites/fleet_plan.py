"""Runs of the suite ``fleet`` and their durations. Pure functions.

Rules:

1. A run is identified by workload, load, seed, contender and fault. Seeds are 0, 1, 2 and so on, so
   more seeds or contenders extend the stored runs.
2. For each seed, contenders run sequentially, in an order that rotates with the seed.
3. In the long form, the main contenders have all seeds and the others one. Contenders that the user
   names have all seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.peers import contenders
from bench.suites import workloads

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.suites.context import Context

MAIN: Final = (
    "tidegate",
    "vllm-cache_aware",
    "sglang-cache_aware",
    "envoy-least-request",
    "envoy-ring-hash",
)
"""Representative contenders: they run all loads, seeds and faults."""
QUICK: Final = (
    "tidegate",
    "vllm-cache_aware",
    "sglang-cache_aware",
    "sglang-power_of_two",
    "envoy-least-request",
)
LOADS: Final = (0.65, 0.9)
QUICK_GRID: Final = (("sessions", 0.65), ("conversation", 0.9), ("nothing-shared", 0.65))
NATIVE: Final = ("conversation", 0.9)
"""Workload and load at which Tidegate also runs with ``OTHER_APIS``."""
OTHER_APIS: Final = ("generate", "early-headers")
"""Triton's API, and chats whose headers come at once, as vLLM sends them, not with the first
token."""
FAULTS: Final = ("kill", "slow", "hang")
FAULTY: Final = ("conversation", 0.65)
"""Workload and load of the runs with faults."""
QUICK_FAULTY: Final = QUICK[:2]
KEYS: Final = ("workload", "load", "seed", "contender", "fault")
"""Columns that identify a run."""
SECONDS: Final = (10.0, 12.0)
"""Length of a run in the short and the long form, seconds."""
AROUND_S: Final = 4.5
"""Overhead of a run, seconds: start, last responses, stop."""
CALIBRATE_S: Final = 8.0
"""Duration of the search for a workload's saturation rate, seconds."""


@dataclass(frozen=True, slots=True)
class FleetCell:
    """One run of the suite ``fleet``."""

    workload: str
    load: float
    seed: int
    contender: str
    fault: str = ""
    api: str = "chat"

    @property
    def label(self) -> str:
        """Return the name of the row."""
        return self.contender if self.api == "chat" else f"{self.contender}-{self.api}"

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the identity of the run: the values of ``KEYS``."""
        return (self.workload, self.load, self.seed, self.label, self.fault)


def available(context: Context) -> tuple[str, ...]:
    """Return the requested contenders without those that could not be installed."""
    wanted = context.contenders or context.pick(QUICK, contenders.NAMES)
    return contenders.present(wanted, context.environment)


def cells(context: Context, names: Sequence[str]) -> list[FleetCell]:
    """Return all runs in order of execution."""
    wanted = context.workloads or tuple(workloads.KINDS)
    grid: Sequence[tuple[str, float]] = context.pick(
        QUICK_GRID, tuple((name, load) for name in workloads.KINDS for load in LOADS)
    )
    grid = [(name, load) for name, load in grid if name in wanted]
    made = []
    for workload, load in grid:
        for seed in range(context.seeds):
            turning = [name for name in names if seed < _seeds(context, name)]
            made += [FleetCell(workload, load, seed, name) for name in _turned(turning, seed)]
    if contenders.TIDEGATE in names and NATIVE in grid:
        made += [
            FleetCell(*NATIVE, seed, contenders.TIDEGATE, api=api)
            for api in OTHER_APIS
            for seed in range(context.seeds)
        ]
    few = context.contenders or context.pick(QUICK_FAULTY, MAIN)
    faulty = [name for name in names if name in few]
    for fault in FAULTS if FAULTY[0] in wanted else ():
        for seed in range(context.seeds):
            made += [FleetCell(*FAULTY, seed, name, fault) for name in _turned(faulty, seed)]
    return made


def ordered(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in table order: by workload, load, contender and seed, faults last."""
    kinds, names = list(workloads.KINDS), list(contenders.NAMES)

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        label = row["contender"]
        own = names.index(label) if label in names else len(names)
        fault = (FAULTS.index(row["fault"]) + 1) if row["fault"] else 0
        return (fault, kinds.index(row["workload"]), row["load"], own, label, row["seed"])

    return sorted(rows, key=place)


def run_s(context: Context) -> float:
    """Return the length of a run, seconds."""
    return context.seconds or context.pick(*SECONDS)


def usual_s(context: Context) -> float:
    """Return the approximate duration of all requested runs, seconds."""
    return estimate_s(cells(context, available(context)), run_s(context))


def estimate_s(todo: Sequence[FleetCell], seconds: float, taken: Sequence[float] = ()) -> float:
    """Return the approximate duration of runs, seconds.

    Args:
        todo: The runs.
        seconds: Length of a run.
        taken: Durations of finished runs of that length, if any.
    """
    each = sum(taken) / len(taken) if taken else seconds + AROUND_S
    return len(todo) * each + CALIBRATE_S * len({cell.workload for cell in todo})


def _seeds(context: Context, name: str) -> int:
    return context.seeds if name in MAIN or context.contenders or not context.full else 1


def _turned(names: Sequence[str], seed: int) -> Sequence[str]:
    turn = seed % len(names) if names else 0
    return (*names[turn:], *names[:turn])
