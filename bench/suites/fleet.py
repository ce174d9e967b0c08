"""Suite ``fleet``: trace replay on emulated replicas, through Tidegate and through other routers.

Rules:

1. All contenders get the same requests at the same times on the same replicas, whose caches and
   counters are reset before each run; each contender is started for its run. ``fleet_plan.py``
   defines the runs.
2. Arrival times are fixed in advance, and latencies count from them. The first part of each run
   warms the caches and is not measured. Times are emulated seconds: wall time times the scale of
   the workload.
3. Tidegate is also run with Triton's API: ``generate_stream`` instead of chats, and Triton's
   metrics page instead of vLLM's, and on replicas that send the headers of a stream at once, as
   vLLM does. These rows are named ``tidegate-generate`` and ``tidegate-early-headers``.
4. Tidegate's pool configures the body size for long prompts (``peek_bytes``) and an index of the
   size of a replica's cache. No other information about the replicas is configured.
5. A finished run is stored at once (``bench/journal.py``): a second start executes only missing
   runs and reports all. A failed run is reported and skipped; three failures in a row end the
   suite.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from bench.emulator.fleet import EmulatedFleet
from bench.journal import Journal, code_digest
from bench.load.plan import LoadPlan
from bench.load.process import run_load
from bench.peers import contenders
from bench.suites import workloads
from bench.suites.context import busy_seconds, machine
from bench.suites.fleet_plan import KEYS, FleetCell, available, cells, estimate_s, ordered, run_s
from bench.suites.summary import caches, served, since

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.suites.context import Context
    from bench.suites.workloads import Prepared

REPLICAS: Final = 8
WARMUP: Final = 0.25
TIMEOUT_S: Final = 40.0
ROUTING: Final = {
    "peek_bytes": 2**20,
}
PAGES: Final = {"chat": "vllm", "generate": "triton", "early-headers": "vllm"}
ENDS: Final = {"chat": "[DONE]", "generate": "", "early-headers": "[DONE]"}
VICTIM: Final = "e2"
FAULT_AT: Final = 0.4
"""Start of a fault, as a fraction of the run."""
DOWN_S: Final = 4.0
SLOW_SPEED: Final = 0.25
MAX_JOBS: Final = 4_000
GIVE_UP: Final = 3
"""Number of consecutive failed runs that ends the suite."""


class FleetSuiteError(RuntimeError):
    """Consecutive runs failed; the message contains the last error."""


async def run(context: Context) -> dict[str, Any]:
    """Execute the missing runs; return all runs and the conditions.

    Raises:
        FleetSuiteError: ``GIVE_UP`` runs failed in a row.
    """
    names = available(context)
    seconds = run_s(context)
    plan = cells(context, names)
    journal = Journal(
        context.out, "fleet", _conditions(context, seconds), KEYS, fresh=context.fresh
    )
    todo = [cell for cell in plan if cell.key not in journal]
    _announce(context, journal, plan, todo, seconds)
    failed: list[str] = []
    about = {
        "replicas": REPLICAS,
        "seconds": seconds,
        "warmup": WARMUP,
        "routing": ROUTING,
        "missing": context.environment.missing,
        "journal": journal.path.name,
    }

    def found() -> dict[str, Any]:
        rows = ordered(journal.rows)
        left = [cell for cell in plan if cell.key not in journal]
        return {
            **about,
            "workloads": {row["workload"]: row["about"] for row in rows},
            "left": len(left),
            "broken": failed,
            "rows": rows,
        }

    in_a_row = 0
    done = len(plan) - len(todo)
    known: dict[str, Prepared] = {}
    for (workload, api), group in groupby(todo, key=lambda one: (one.workload, one.api)):
        if workload not in known:
            context.say(f"fleet: what {REPLICAS} replicas sustain of {workload}")
            known[workload] = workloads.prepare(workload, REPLICAS, MAX_JOBS, context.scale)
        prepared = known[workload]
        scale = prepared.kind.scale
        early = api == "early-headers"
        async with EmulatedFleet(
            REPLICAS, scale=scale, page=PAGES[api], early_headers=early
        ) as fleet:
            for cell in group:
                done += 1
                what = f"{cell.workload} {cell.load:.0%} {cell.label} {cell.fault}".rstrip()
                context.say(f"fleet {done}/{len(plan)}: {what}, seed {cell.seed}")
                try:
                    journal.add(await _run_cell(context, cell, prepared, fleet, seconds))
                except Exception as error:  # reported; the next run may succeed
                    failed.append(f"{what}, seed {cell.seed}: {type(error).__name__}: {error}")
                    context.say(f"fleet FAILED: {failed[-1]}")
                    in_a_row += 1
                    if in_a_row >= GIVE_UP:
                        raise FleetSuiteError(failed[-1]) from error
                else:
                    in_a_row = 0
                context.save(found())
    return found()


def _conditions(context: Context, seconds: float) -> dict[str, Any]:
    about = machine()
    return {
        "code": code_digest(),
        "machine": {key: about[key] for key in ("cpu", "cores", "python", "versions")},
        "seconds": seconds,
        "scale": context.scale,
    }


def _announce(
    context: Context,
    journal: Journal,
    plan: Sequence[FleetCell],
    todo: Sequence[FleetCell],
    seconds: float,
) -> None:
    if len(todo) < len(plan):
        there = f"{len(plan) - len(todo)} of {len(plan)} runs are stored"
        context.say(f"fleet: {there} ({journal.path.name}); --fresh discards them")
    if journal.others:
        count = len(journal.others)
        context.say(
            f"fleet: {count} other journal{'s' * (count > 1)} in {context.out}, of other code,"
            " packages or parameters: kept and not shown"
        )
    took = [row["took_s"] for row in journal.rows]
    if todo:
        minutes = estimate_s(todo, seconds, took) / 60
        context.say(f"fleet: {len(todo)} runs of {seconds:g} s, about {minutes:.0f} minutes")


async def _run_cell(
    context: Context, cell: FleetCell, prepared: Prepared, fleet: EmulatedFleet, seconds: float
) -> dict[str, Any]:
    began = time.monotonic()
    scale = prepared.kind.scale
    at = workloads.times(prepared, cell.load, seconds, cell.seed)
    sent = workloads.requests(prepared.workload.jobs[: len(at)], f"seed {cell.seed}", cell.api)
    # Reset before the contender starts: a router takes a decreasing counter for a restart.
    await fleet.reset()
    broke_at: list[float] = []
    async with contenders.start(
        cell.contender, fleet.places, context.environment, ROUTING, checks=bool(cell.fault)
    ) as running:
        load = LoadPlan(
            running.address,
            which=range(len(sent)),
            at=at,
            timeout_s=TIMEOUT_S,
            ends_with=ENDS[cell.api],
            requests=sent,
        )
        before, busy, begin = running.cpu(), busy_seconds(), time.monotonic()
        results = await run_load(
            load, (lambda: _fault(fleet, cell.fault, seconds, broke_at)) if cell.fault else None
        )
        spent, busy, took = running.cpu(), busy_seconds() - busy, time.monotonic() - begin
        stats = await fleet.stats()
    row = {
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
        "about": {
            "saturation": prepared.saturation,
            "slo_s": prepared.slo_s,
            "scale": scale,
            "cache_rich": prepared.kind.cache_rich,
        },
        "commit": machine()["commit"],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if broke_at:
        row["phase"] = since(results, broke_at[0] - results.began, scale, prepared.slo_s)
    return {**row, "took_s": round(time.monotonic() - began, 1)}


async def _fault(fleet: EmulatedFleet, fault: str, seconds: float, broke_at: list[float]) -> None:
    """Inject a fault into one replica during a run, and repair it even if the run ends earlier."""
    await asyncio.sleep(1.0 + seconds * FAULT_AT)
    broke_at.append(time.perf_counter())
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
