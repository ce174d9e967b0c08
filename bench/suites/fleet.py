"""Suite ``fleet``: trace replay on emulated replicas, through Tidegate and through its peers.

Rules:

1. All contenders meet the same requests at the same times on the same replicas, whose caches and
   counters are emptied before; each contender is started fresh. Per seed they run one after the
   other, in an order that turns with the seed, so that a slow moment of the machine does not always
   hit the same one.
2. Arrivals are fixed before; times count from them. The first share of each run fills caches and is
   not measured. Times are emulated seconds: wall time times the workload's scale.
3. Tidegate alone is also met in Triton's words: ``generate_stream`` instead of chats, and Triton's
   metrics page instead of vLLM's. That row is named ``tidegate-generate``.
4. Tidegate's pool says what the replicas are: room for long prompts (``peek_bytes``) and as much
   index as a replica has cache. Nothing else is told to anybody.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from bench.emulator.fleet import EmulatedFleet
from bench.emulator.text import BLOCK_CHARS
from bench.load.plan import Plan
from bench.load.process import run_load
from bench.peers import contenders
from bench.suites import workloads
from bench.suites.context import busy_seconds
from bench.suites.summary import caches, served
from tidegate.simulate.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.suites.context import Context
    from bench.suites.workloads import Prepared

REPLICAS: Final = 8
WARMUP: Final = 0.25
TIMEOUT_S: Final = 40.0
QUICK: Final = (
    "tidegate",
    "vllm-cache_aware",
    "sglang-cache_aware",
    "sglang-power_of_two",
    "envoy-least-request",
)
POOL_BLOCK_CHARS: Final = 256
ROUTING: Final = {
    "peek_bytes": 2**20,
    "index_blocks": Engine().cache_blocks * BLOCK_CHARS // POOL_BLOCK_CHARS,
}
NATIVE: Final = ("conversation", 0.9)
"""Where Tidegate is met in Triton's words as well."""
PAGES: Final = {"chat": "vllm", "generate": "triton"}
ENDS: Final = {"chat": "[DONE]", "generate": ""}
FAULTS: Final = ("kill", "slow", "hang")
FAULTY: Final = "conversation"
"""The workload of the fault phases."""
VICTIM: Final = "e2"
DOWN_S: Final = 4.0
SLOW_SPEED: Final = 0.25
MAX_JOBS: Final = 4_000


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    workload: str
    load: float
    seed: int
    contender: str
    fault: str = ""
    api: str = "chat"

    @property
    def label(self) -> str:
        """Return what the row is called."""
        return self.contender if self.api == "chat" else f"{self.contender}-{self.api}"


def available(context: Context) -> tuple[str, ...]:
    """Return who takes part: those asked for, less those that could not be installed."""
    wanted = context.contenders or context.pick(QUICK, contenders.NAMES)
    missing = context.environment.missing
    return tuple(name for name in wanted if contenders.PACKAGE_OF.get(name) not in missing)


def cells(context: Context, names: Sequence[str]) -> list[Cell]:
    """Return all runs in their order."""
    wanted = context.workloads or tuple(workloads.KINDS)
    grid: list[tuple[str, float]] = context.pick(
        [("sessions", 0.65), ("conversation", 0.9), ("nothing-shared", 0.65)],
        [(name, load) for name in workloads.KINDS for load in (0.65, 0.9)],
    )
    grid = [(name, load) for name, load in grid if name in wanted]
    made = []
    for workload, load in grid:
        for seed in range(context.seeds):
            turn = seed % len(names)
            made += [Cell(workload, load, seed, name) for name in (*names[turn:], *names[:turn])]
    if contenders.TIDEGATE in names and NATIVE in grid:
        made += [
            Cell(*NATIVE, seed, contenders.TIDEGATE, api="generate")
            for seed in range(context.seeds)
        ]
    few = context.pick(QUICK[:2], (*QUICK[:3], "envoy-least-request"))
    faulty = [name for name in names if name in few]
    for fault in FAULTS if FAULTY in wanted else ():
        for seed in range(context.seeds):
            made += [Cell(FAULTY, 0.65, seed, name, fault) for name in faulty]
    return made


async def run(context: Context) -> dict[str, Any]:
    """Run everything; returns rows and what they were run on."""
    names = available(context)
    seconds = context.seconds or context.pick(10.0, 30.0)
    plan = cells(context, names)
    prepared: dict[str, Prepared] = {}
    rows: list[dict[str, Any]] = []
    for (workload, api), group in groupby(
        enumerate(plan, 1), key=lambda one: (one[1].workload, one[1].api)
    ):
        if workload not in prepared:
            context.say(f"fleet: what {REPLICAS} replicas sustain of {workload}")
            prepared[workload] = workloads.prepare(workload, REPLICAS, MAX_JOBS, context.scale)
        scale = prepared[workload].kind.scale
        async with EmulatedFleet(REPLICAS, scale=scale, page=PAGES[api]) as fleet:
            for number, cell in group:
                what = f"{cell.workload} {cell.load:.0%} {cell.label} {cell.fault}"
                context.say(f"fleet {number}/{len(plan)}: {what}")
                rows.append(await _run_cell(context, cell, prepared[workload], fleet, seconds))
    return {
        "replicas": REPLICAS,
        "seconds": seconds,
        "warmup": WARMUP,
        "routing": ROUTING,
        "contenders": names,
        "missing": context.environment.missing,
        "workloads": {
            name: {
                "saturation": one.saturation,
                "slo_s": one.slo_s,
                "scale": one.kind.scale,
                "cache_rich": one.kind.cache_rich,
            }
            for name, one in prepared.items()
        },
        "rows": rows,
    }


async def _run_cell(
    context: Context, cell: Cell, prepared: Prepared, fleet: EmulatedFleet, seconds: float
) -> dict[str, Any]:
    scale = prepared.kind.scale
    at = workloads.times(prepared, cell.load, seconds, cell.seed)
    sent = workloads.requests(prepared.workload.jobs[: len(at)], f"seed {cell.seed}", cell.api)
    # Before the contender looks at them: counters that fall are a restart to who watches.
    await fleet.reset()
    async with contenders.start(
        cell.contender, fleet.places, context.environment, ROUTING
    ) as running:
        load = Plan(
            running.address,
            which=range(len(sent)),
            at=at,
            timeout_s=TIMEOUT_S,
            ends_with=ENDS[cell.api],
            requests=sent,
        )
        before, busy, begin = running.cpu(), busy_seconds(), time.monotonic()
        results = await run_load(
            load, (lambda: _fault(fleet, cell.fault, seconds)) if cell.fault else None
        )
        spent, busy, took = running.cpu(), busy_seconds() - busy, time.monotonic() - begin
        stats = await fleet.stats()
    return {
        "workload": cell.workload,
        "load": cell.load,
        "seed": cell.seed,
        "contender": cell.label,
        "fault": cell.fault,
        "rate": prepared.saturation * cell.load,
        **served(results, WARMUP, scale, prepared.slo_s),
        **caches(stats),
        "cpu_us": {name: (spent[name] - before[name]) / max(1, len(sent)) * 1e6 for name in spent},
        "busy_cores": busy / took,
    }


async def _fault(fleet: EmulatedFleet, fault: str, seconds: float) -> None:
    """Break one replica in the middle of a run, and mend it, also where the run ends before."""
    await asyncio.sleep(1.0 + seconds * 0.4)
    if fault == "kill":
        await fleet.kill(VICTIM)
        try:
            await asyncio.sleep(DOWN_S)
        finally:
            await fleet.restart(VICTIM)
    elif fault == "slow":
        await fleet.slow(VICTIM, SLOW_SPEED)
    else:
        fleet.hang(VICTIM)
        try:
            await asyncio.sleep(DOWN_S)
        finally:
            fleet.wake(VICTIM)
