"""Limits of requests in flight in the simulator: ``python bench/compare/limits.py [--jobs N]``.

Every fixed ``per_endpoint_in_flight`` of ``FIXED`` is compared with ``limit: auto`` and with no
limit, at 0.5 to 3 times what the fleet sustains, for engines that declare their slots, show what
runs and waits, or tell nothing. Jobs wait in the picker for at most half of the time within which
their first token counts, which is named beforehand. Shown are the answers per second with such a
first token, in the second half of a run.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.engine import EngineConfig
from bench.simulate.experiment import RunPlan, default_slo, run_one, saturation
from bench.simulate.generators import GENERATORS, PACE_PER_REPLICA
from bench.simulate.scenario import Scenario

if TYPE_CHECKING:
    from bench.simulate.workload import Workload

LOADS: Final = (0.5, 0.8, 1.0, 1.5, 2.0, 3.0)
FIXED: Final = (2, 4, 8, 12, 16, 20, 24, 32, 64)
TELLS: Final[tuple[Literal["declared", "observed", "nothing"], ...]] = (
    "declared",
    "observed",
    "nothing",
)
SOURCES: Final = ("sessions", "shared-prefix")
FLEET: Final = Scenario(replicas=3, engine=EngineConfig(max_running=16), warmup=0.5)


def _goodput(workload: Workload, slo_s: float, rate: float, scenario: Scenario) -> float:
    metrics = run_one(workload, scenario, RunPlan("auto", 1, rate), slo_s).metrics
    return (metrics.goodput or 0.0) * rate


def main() -> None:
    """Print a table for each traffic and each kind of engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=3000, help="requests of a run")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes) as processes:
        for source in SOURCES:
            rng = Random(7)  # noqa: S311 - runs must repeat
            workload = GENERATORS[source](options.jobs, rng, PACE_PER_REPLICA * FLEET.replicas)
            slo_s = default_slo(workload, FLEET)
            fleet = replace(FLEET, hold_s=slo_s / 2)
            sustained = saturation(workload, FLEET, slo_s)
            print(f"\n{source}: {sustained:.1f}/s sustained, first token within {slo_s:.1f} s")
            fixed = [replace(fleet, per_endpoint_in_flight=each) for each in FIXED]
            told = [replace(fleet, limit="auto", tells=each) for each in TELLS]
            runs = [*fixed, fleet, *told]
            names = [*map(str, FIXED), "none", *TELLS]
            print("load", *(f"{each:>9}" for each in names), "  best  worst share of auto")
            for load in LOADS:
                run = partial(_goodput, workload, slo_s, load * sustained)
                found = list(processes.map(run, runs))
                best = max(found[: len(FIXED)])
                share = min(found[-len(TELLS) :]) / best
                print(
                    f"{load:4.1f}", *(f"{each:9.1f}" for each in found), f"{best:6.1f} {share:.2f}"
                )


if __name__ == "__main__":
    main()
