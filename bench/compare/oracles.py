"""`auto` beside the greedy oracles, and fleets of which five of eight replicas restart.

    python bench/compare/oracles.py [--traffic conversation,agents] [--loads 0.7] [--seeds 5]
    python bench/compare/oracles.py --restart [--traffic conversation,sessions]

Simulates eight replicas with 1,500 blocks each. Loads are shares of what least-in-flight sustains.
The tables are Markdown: the mean over seeds, and the change against the oracle or against a fleet
that did not restart, paired by seed, with Student's 95 % interval. One process; 1 to 4 s of CPU for
each policy, load and seed. ``--durations`` lets the picker learn from ends of answers only. With
``--no-cache-planned`` replicas share blocks of computed prompts only; loads are the same.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from bench.compare.table import change
from bench.engine import EngineConfig
from bench.simulate.experiment import RunPlan, default_slo, run_one, saturation
from bench.simulate.generators import GENERATORS, PACE_PER_REPLICA
from bench.simulate.scenario import Scenario
from bench.simulate.traces import read_trace
from bench.simulate.unseen.generators import UNSEEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.simulate.workload import Workload

TRACE = Path(__file__).resolve().parents[1] / "traces" / "conversation_trace.jsonl"
REQUESTS = 3_000
FLEET = Scenario(engine=EngineConfig(cache_blocks=1_500))
TRAFFIC = ("conversation", *UNSEEN, "sessions", "shared-prefix")
POLICIES = ("auto", "probe", "oracle-exact", "oracle")
RESTART = replace(FLEET, slow_start_s=30.0, window_s=(150.0, 300.0))
"""The fleet of the restart: a ramp of half a minute; the 150 s from the restart on count."""
RESTART_AT_S = 150.0
RESTART_LOAD = 0.7


def workload(name: str) -> Workload:
    """Return the traffic of a trace, the repository's or a file, or of a generator.

    Raises:
        TraceError: The file cannot be read or a line violates the format.
    """
    if name == "conversation" or name.endswith(".jsonl"):
        return read_trace(TRACE if name == "conversation" else Path(name)).first(REQUESTS)
    pace = PACE_PER_REPLICA * FLEET.replicas
    if name in UNSEEN:
        return UNSEEN[name](REQUESTS, pace)
    return GENERATORS[name](REQUESTS, Random(0), pace)  # noqa: S311 - repeatable


class Times:
    """Times to the first token of one policy by seed, seconds."""

    def __init__(
        self, jobs: Workload, fleet: Scenario, policy: str, rate: float, seeds: int
    ) -> None:
        self.mean: dict[int, float] = {}
        self.p99: dict[int, float] = {}
        for seed in range(seeds):
            found = run_one(jobs, fleet, RunPlan(policy, seed, rate), None).metrics
            self.mean[seed], self.p99[seed] = found.ttft_mean or 0.0, found.ttft_p99 or 0.0

    def row(self, other: Times) -> str:
        """Return the cells: mean and p99, each with its change against another policy."""
        return " | ".join(
            f"{sum(ours.values()) / len(ours):.3g} s | {change(ours, theirs)}"
            for ours, theirs in ((self.mean, other.mean), (self.p99, other.p99))
        )


def sharing(fleet: Scenario, *, planned: bool) -> Scenario:
    """Return a fleet with or without sharing of blocks that a step is planned to fill."""
    return replace(fleet, engine=replace(fleet.engine, cache_planned=planned))


def beside_oracles(
    traffic: Sequence[str], loads: Sequence[float], seeds: int, fleet: Scenario
) -> None:
    """Print the table of policies against both oracles."""
    print("| traffic, load | policy | mean | vs oracle | p99 | vs oracle | mean vs exact | p99 |")
    print("|---|---|---|---|---|---|---|---|")
    for name in traffic:
        jobs = workload(name)
        top = saturation(jobs, FLEET, default_slo(jobs, FLEET))
        for load in loads:
            times = {each: Times(jobs, fleet, each, top * load, seeds) for each in POLICIES}
            oracle, exact = times["oracle"], times["oracle-exact"]
            for policy, each in times.items():
                against = (change(each.mean, exact.mean), change(each.p99, exact.p99))
                cells = " | ".join((f"{name}, {load:.0%}", policy, each.row(oracle), *against))
                print(f"| {cells} |", flush=True)


def restarted(traffic: Sequence[str], seeds: int, usual: Scenario) -> None:
    """Print the table of fleets of which five replicas restart."""
    print("| traffic | policy | mean | vs no restart | p99 | vs no restart |")
    print("|---|---|---|---|---|---|")
    for name in traffic:
        jobs = workload(name)
        rate = RESTART_LOAD * saturation(jobs, FLEET, default_slo(jobs, FLEET))
        for policy in POLICIES:
            calm = Times(jobs, usual, policy, rate, seeds)
            fleet = replace(usual, restart_at_s=RESTART_AT_S)
            row = Times(jobs, fleet, policy, rate, seeds).row(calm)
            print(f"| {name} | {policy} | {row} |", flush=True)


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description="auto beside the greedy oracles.")
    parser.add_argument("--traffic", default="", help="comma-separated names")
    parser.add_argument("--loads", default="0.7,0.95")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--restart", action="store_true", help="five of eight replicas restart")
    parser.add_argument("--durations", action="store_true", help="no first tokens in the log")
    parser.add_argument(
        "--cache-planned",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="prompts in work share blocks",
    )
    args = parser.parse_args()
    names = [each for each in args.traffic.split(",") if each]
    if args.restart:
        usual = sharing(RESTART, planned=args.cache_planned)
        restarted(names or ["conversation", "sessions"], args.seeds, usual)
        return
    loads = [float(each) for each in args.loads.split(",")]
    fleet = replace(sharing(FLEET, planned=args.cache_planned), first_tokens=not args.durations)
    beside_oracles(names or TRAFFIC, loads, args.seeds, fleet)


if __name__ == "__main__":
    main()
