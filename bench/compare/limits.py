"""Limits of requests in flight in the simulator: ``python bench/compare/limits.py [--jobs N]``.

Every fixed ``per_endpoint_in_flight`` of ``FIXED`` is compared with ``limit: auto`` and with no
limit, at 0.5 to 3 times what the fleet sustains, for engines that declare their slots, show what
runs and waits, or tell nothing. Of the latter ``cold`` begins with the load, and the first quarter
of the jobs of ``warm`` comes at 0.8 times what the fleet sustains; ``whole`` is as ``warm``, where
first tokens are not known, as of answers that come whole. What exceeds a limit waits in the
picker's queue with its default settings, and some is refused. Shown are the answers per second with
a first token within a time that is named beforehand, in the second half of a run, the share of each
kind of engine in the best fixed limit, and the share of all jobs of the half that waited or were
refused, the highest of all kinds.

Beside these stand rules of other routers (``PEERS``), each with its own choice of a replica:
llm-d's for requests that may be shed and with flow control, and SMG's queue. Their versions are
named in ``bench/simulate/schedulers``, ``llm_d.py`` and ``smg.py``.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.engine import EngineConfig
from bench.simulate.experiment import RunPlan, default_slo, run_records, saturation
from bench.simulate.fleet import End
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
PEERS: Final = ("llm-d-chart", "llm-d-sheddable", "llm-d-flow-control", "smg-queue")
"""The first one with llm-d's defaults, which refuse nothing of a priority of 0 or more."""
KINDS: Final = ("declared", "observed", "cold", "warm", "whole")
WARM_SHARE: Final = 0.25
WARM_LOAD: Final = 0.8
FLEET: Final = Scenario(replicas=3, engine=EngineConfig(max_running=16), warmup=0.5)


class Found(NamedTuple):
    """What a run gave, in its second half."""

    goodput: float
    """Answers per second with a first token in time."""
    kept_back: float
    """Share of the jobs that waited in the picker, or were refused."""


def _run(
    workload: Workload, slo_s: float, rate: float, scenario: Scenario, policy: str = "auto"
) -> Found:
    records, _, times = run_records(workload, scenario, RunPlan(policy, 1, rate))
    half = records[scenario.measured(times)]
    good = sum(each.ttft_s is not None and each.ttft_s <= slo_s for each in half)
    back = sum(each.end is not End.SERVED or each.held_s > 0.0 for each in half)
    return Found(good / len(half) * rate, back / len(half))


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(each) for each in text.split(","))


def main() -> None:
    """Print a table for each traffic and each kind of engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=3000, help="requests of a run")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--loads", type=_numbers, default=LOADS, help="times what is sustained")
    parser.add_argument("--fixed", type=_numbers, default=FIXED, help="limits")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes) as processes:
        for source in SOURCES:
            rng = Random(7)  # noqa: S311 - runs must repeat
            workload = GENERATORS[source](options.jobs, rng, PACE_PER_REPLICA * FLEET.replicas)
            slo_s = default_slo(workload, FLEET)
            fleet = replace(FLEET, hold_s=10.0)
            sustained = saturation(workload, FLEET, slo_s)
            print(f"\n{source}: {sustained:.1f}/s sustained, first token within {slo_s:.1f} s")
            fixed = [
                replace(fleet, per_endpoint_in_flight=each) for each in map(int, options.fixed)
            ]
            told = [replace(fleet, limit="auto", tells=each) for each in TELLS]
            names = [*(f"{each:g}" for each in options.fixed), "none", *KINDS]
            print(
                "load", *(f"{each:>8}" for each in names), "   best share of", *KINDS, "kept back"
            )
            for load in options.loads:
                warm = replace(told[-1], calm=(WARM_SHARE, WARM_LOAD / load))
                whole = replace(warm, first_tokens=False)
                run = partial(_run, workload, slo_s, load * sustained)
                found = list(processes.map(run, [*fixed, fleet, *told, warm, whole]))
                peers = processes.map(partial(run, FLEET), PEERS)
                best = max(each.goodput for each in found[: len(fixed)])
                auto = found[len(fixed) + 1 :]
                print(
                    f"{load:4.1f}",
                    *(f"{each.goodput:8.1f}" for each in found),
                    f"{best:7.1f} ",
                    *(f"{each.goodput / best:.2f}" for each in auto),
                    f" {max(each.kept_back for each in auto):.3f}  ",
                    *(
                        f"{name} {each.goodput:.1f} ({each.kept_back:.2f})"
                        for name, each in zip(PEERS, peers, strict=True)
                    ),
                    flush=True,
                )


if __name__ == "__main__":
    main()
