"""The first band under a flood of the second, end to end: ``python bench/load/flood.py``.

    python bench/load/flood.py [--engines declared,observed,decoupled] [--traffic plain]
        [--loads 2,3] [--high 0.8] [--seconds 60]

Engines, callers and traffic are those of ``goodput.py``, settings the defaults. Loads are shares of
what the engines sustain without a wait. A run has two phases: first all that comes is ``CALM``, of
which ``--high`` is the first band; then the same requests of the first band come at the same
intervals, and the second fills the load up. The second names an objective
(``routing.low_objectives``).

Printed are, of the first band, percentiles of the first byte in seconds (of whole answers it is the
end) in both phases without their first ``SETTLE_S``, the ratio of the 99th, and the share that was
refused or gave up; then how many answers of the second band a second came under the flood. Who got
no answer counts as slower than all others.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from itertools import product
from math import inf
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.load.goodput import (
    CALM,
    DEFAULTS,
    ENGINES,
    PATIENCE,
    TRAFFIC,
    Cell,
    bodies_of,
    fleet_of,
    jobs_of,
    running,
)
from tidegate_api.names import OBJECTIVE_HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.simulate.workload import Job

LOW: Final = "batch"
SETTLE_S: Final = 10.0
GAP_S: Final = 10.0
"""Between the phases, for what is left of the first."""
PERCENTILES: Final = (50, 90, 99)


class Arrival(NamedTuple):
    """A request of a run."""

    at: float
    """Seconds since the run began."""
    phase: int
    low: bool
    body: bytes


def arrivals_of(rate: float, seconds: float, seed: int) -> list[float]:
    """Return times at which requests come at random, seconds."""
    rng, found, at = Random(seed), [], 0.0  # noqa: S311 - runs must repeat
    while rate and (at := at + rng.expovariate(rate)) < seconds:
        found.append(at)
    return found


def planned(
    bodies: Sequence[bytes], rate: float, high: float, load: float, seconds: float
) -> list[Arrival]:
    """Return the requests of a run.

    Args:
        bodies: Bodies; both phases begin with the first.
        rate: Requests a second that the engines sustain.
        high: Share of it that the first band is.
        load: Share of it that both bands are in the second phase.
        seconds: Of each phase.
    """
    plan: list[Arrival] = []
    for phase, total in enumerate((CALM, load)):
        start, half = phase * (seconds + GAP_S), len(bodies) // 2
        for low, share in ((False, high), (True, total - high)):
            times = arrivals_of(rate * share, seconds, seed=1 + low)
            own = bodies[half:] if low else bodies[:half]
            plan.extend(
                Arrival(start + at, phase, low, own[n % half]) for n, at in enumerate(times)
            )
    return sorted(plan)


async def first_byte_s(
    session: aiohttp.ClientSession, url: str, each: Arrival, start: float, patience_s: float
) -> float:
    """Send one request; return after how many seconds its answer began, ``inf`` = never."""
    await asyncio.sleep(max(0.0, start + each.at - time.perf_counter()))
    headers = {"content-type": "application/json", **({OBJECTIVE_HEADER: LOW} if each.low else {})}
    try:
        async with asyncio.timeout(patience_s) as bound:
            async with session.post(url, data=each.body, headers=headers) as answer:
                await answer.content.readany()
                took_s = time.perf_counter() - start - each.at
                bound.reschedule(None)
                await answer.read()
    except (TimeoutError, aiohttp.ClientError):
        return inf
    return took_s if answer.status == 200 else inf


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile by the nearest rank."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


async def run(
    engine: str, name: str, load: float, high: float, seconds: float, jobs: Sequence[Job]
) -> str:
    """Run both phases; return the line of the table."""
    traffic = TRAFFIC[name]
    plan = planned(bodies_of(engine, name, jobs), traffic.rate, high, load, seconds)
    usual = fleet_of(Cell(engine, name, load, DEFAULTS))

    def fleet(made: dict[str, Any]) -> None:
        usual(made)
        made["pools"][0]["routing"] = {"low_objectives": [LOW]}

    patience_s = PATIENCE * (traffic.total_s if engine == "declared" else traffic.first_s)
    async with running(engine, traffic, fleet) as (session, _, url):
        start = time.perf_counter() + 1.0
        found = await asyncio.gather(
            *(first_byte_s(session, url, each, start, patience_s) for each in plan)
        )
    counted = [
        (each, took_s)
        for each, took_s in zip(plan, found, strict=True)
        if each.at - each.phase * (seconds + GAP_S) >= SETTLE_S
    ]
    cells, last = [f"{engine}, {name}", f"{high:g}", f"{load:g}"], []
    for phase in (0, 1):
        took = [took_s for each, took_s in counted if each.phase == phase and not each.low]
        last.append(percentile(took, 99))
        told = " / ".join(f"{percentile(took, each):.2f}" for each in PERCENTILES)
        cells += [told, f"{took.count(inf) / len(took):.1%}"]
    low = [took_s for each, took_s in counted if each.phase == 1 and each.low]
    answered = (len(low) - low.count(inf)) / (seconds - SETTLE_S)
    ratio = f"{last[1] / last[0]:.2f}"
    return f"| {' | '.join((*cells, ratio, f'{answered:.1f}', f'{os.getloadavg()[0]:.1f}'))} |"


def main() -> None:
    """Run, and print a table."""
    parser = argparse.ArgumentParser(description="The first band under a flood of the second.")
    parser.add_argument("--engines", default=",".join(ENGINES), help="comma-separated")
    parser.add_argument("--traffic", default="plain", help="comma-separated")
    parser.add_argument("--loads", default="2,3", help="of both bands in the second phase")
    parser.add_argument("--high", type=float, default=CALM, help="load of the first band")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each phase")
    args = parser.parse_args()
    heads = ("engines, traffic", "high", "load", "p50 / p90 / p99 calm", "lost")
    heads += ("flooded", "lost", "ratio", "second band/s", "load average")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    for traffic in args.traffic.split(","):
        jobs = jobs_of(traffic).jobs
        for engine, load in product(args.engines.split(","), args.loads.split(",")):
            line = run(engine, traffic, float(load), args.high, args.seconds, jobs)
            print(asyncio.run(line), flush=True)


if __name__ == "__main__":
    main()
