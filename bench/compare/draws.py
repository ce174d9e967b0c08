"""`auto` with default settings on fleets drawn at random, beside an oracle with exact knowledge.

    python bench/compare/draws.py [--draws 30] [--first 1] [--traffic sessions] [--requests 1500]

A draw is a seed. It gives the bytes of text per token (0.25 to 8), the engine's prefill speed,
chunk, batch, step times and cache, how often its page is read (every 0.1 to 10 s), whether the page
counts prompt tokens, and whether the log tells first tokens. Nothing is configured: blocks, index
and speeds are the picker's defaults. Each of the traffics runs at 95 % of what least-in-flight
sustains there, once, under `auto` and `oracle-exact`, which knows all caches and queues. The tables
are Markdown. 4 to 8 s of CPU for each draw and traffic, most of it for the saturation rate.

The simulator cuts prompts by the trace's 512 tokens, so an engine's blocks are that long. Seeds are
new for each release, and no constant is chosen with them.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from random import Random
from statistics import median

from bench.compare.oracles import workload
from bench.engine import EngineConfig
from bench.simulate.experiment import CalibrationError, RunPlan, default_slo, run_one, saturation
from bench.simulate.scenario import Scenario

TRAFFIC = ("conversation", "sessions", "shared-prefix", "agents")
LOAD = 0.95
REQUESTS = 1_500
FIRST = 20_261_124
"""The first seed; that of this release."""
LONGEST = 400
"""Blocks that a cache has at least: the longest prompts of the traces must fit."""


def between(chance: Random, low: float, high: float) -> float:
    """Return a number between two, uniform in the logarithm."""
    return low * float((high / low) ** chance.random())


def drawn(seed: int) -> Scenario:
    """Return the fleet of a seed."""
    chance = Random(seed)  # noqa: S311 - repeatable
    engine = EngineConfig(
        prefill_rate=between(chance, 1_000, 40_000),
        base_s=between(chance, 0.002, 0.03),
        per_request_s=between(chance, 0.00005, 0.001),
        step_tokens=int(between(chance, 512, 8_192)),
        max_running=int(between(chance, 16, 512)),
        cache_blocks=int(between(chance, LONGEST, 4_000)),
    )
    return Scenario(
        engine=engine,
        bytes_per_token=between(chance, 0.25, 8.0),
        telemetry_s=between(chance, 0.1, 10.0),
        counts=chance.random() < 0.75,
        first_tokens=chance.random() < 0.75,
    )


@dataclass(frozen=True)
class Found:
    """One draw under one traffic: `auto` over the oracle."""

    seed: int
    traffic: str
    mean: float
    p99: float


def measured(seed: int, traffic: str, requests: int) -> Found:
    """Simulate a draw under a traffic.

    Raises:
        CalibrationError: No rate is sustained.
    """
    fleet, jobs = drawn(seed), workload(traffic).first(requests)
    rate = LOAD * saturation(jobs, fleet, default_slo(jobs, fleet))
    ours, theirs = (
        run_one(jobs, fleet, RunPlan(policy, seed, rate), None).metrics
        for policy in ("auto", "oracle-exact")
    )
    mean = (ours.ttft_mean or 0.0) / (theirs.ttft_mean or 1.0)
    return Found(seed, traffic, mean, (ours.ttft_p99 or 0.0) / (theirs.ttft_p99 or 1.0))


def described(fleet: Scenario) -> str:
    """Return the cells of a draw."""
    engine = fleet.engine
    return " | ".join(
        (
            f"{fleet.bytes_per_token or 0.0:.2f}",
            f"{engine.prefill_rate:.0f}",
            f"{engine.step_tokens}",
            f"{engine.max_running}",
            f"{engine.cache_blocks}",
            f"{fleet.telemetry_s:.2g} s",
            "yes" if fleet.counts else "no",
            "yes" if fleet.first_tokens else "no",
        )
    )


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description="auto on fleets drawn at random.")
    parser.add_argument("--draws", type=int, default=30)
    parser.add_argument("--first", type=int, default=FIRST, help="the first seed")
    parser.add_argument("--traffic", default=",".join(TRAFFIC))
    parser.add_argument("--requests", type=int, default=REQUESTS)
    args = parser.parse_args()
    names = args.traffic.split(",")
    head = ("seed", "bytes/token", "prefill/s", "step", "batch", "cache", "page", "counts", "log")
    print(f"| {' | '.join((*head, *names))} |")
    print("|" + "---|" * (len(head) + len(names)))
    rows: list[Found] = []
    for seed in range(args.first, args.first + args.draws):
        cells = []
        for name in names:
            try:
                found = measured(seed, name, args.requests)
            except CalibrationError:
                cells.append("-")
                continue
            rows.append(found)
            cells.append(f"{found.mean:.2f} / {found.p99:.2f}")
        print(f"| {seed} | {described(drawn(seed))} | {' | '.join(cells)} |", flush=True)
    print("\n| traffic | median draw: mean / p99 | worst draw: mean / p99 |\n|---|---|---|")
    for name in names:
        of = [each for each in rows if each.traffic == name]
        if of:
            middle = f"{median(x.mean for x in of):.2f} / {median(x.p99 for x in of):.2f}"
            worst = f"{max(x.mean for x in of):.2f} / {max(x.p99 for x in of):.2f}"
            print(f"| {name} | {middle} | {worst} |")


if __name__ == "__main__":
    main()
