"""Limits of requests in flight in the simulator: ``python bench/compare/limits.py [--jobs N]``.

Every fixed ``per_endpoint_in_flight`` of ``FIXED`` is compared with ``limit: auto`` and with no
limit, at 0.5 to 3 times what the fleet sustains, for engines that declare their slots, show what
runs and waits, or tell nothing; ``warm``: the latter, where the first quarter of the jobs came at
0.8 times what the fleet sustains. What exceeds a limit waits in the picker's queue with its default
settings, and some is refused. Shown are the answers per second with a first token within a time
that is named beforehand, in the second half of a run, and the share of ``auto`` in the best fixed
limit: the lowest of ``declared`` and ``observed``.
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
WARM_SHARE: Final = 0.25
WARM_LOAD: Final = 0.8
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
            fleet = replace(FLEET, hold_s=10.0)
            sustained = saturation(workload, FLEET, slo_s)
            print(f"\n{source}: {sustained:.1f}/s sustained, first token within {slo_s:.1f} s")
            fixed = [replace(fleet, per_endpoint_in_flight=each) for each in FIXED]
            told = [replace(fleet, limit="auto", tells=each) for each in TELLS]
            names = [*map(str, FIXED), "none", *TELLS, "warm"]
            print("load", *(f"{each:>9}" for each in names), "  best  share of auto")
            for load in LOADS:
                warm = replace(told[-1], calm=(WARM_SHARE, WARM_LOAD / load))
                run = partial(_goodput, workload, slo_s, load * sustained)
                found = list(processes.map(run, [*fixed, fleet, *told, warm]))
                best, auto = max(found[: len(FIXED)]), found[len(FIXED) + 1 :][:2]
                print(
                    f"{load:4.1f}",
                    *(f"{each:9.1f}" for each in found),
                    f"{best:6.1f} {min(auto) / best:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
