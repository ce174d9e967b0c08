"""`auto` with default settings on fleets drawn at random, beside an oracle with exact knowledge.

    python bench/compare/draws.py [--draws 30] [--first 1] [--traffic sessions] [--runs 3]
    python bench/compare/draws.py --processes 2 --worst 4 [--limit none]

A draw is a seed. It gives the bytes of text per token (0.25 to 8), the engine's prefill speed,
chunk, batch, step times, cache and blocks (16 to 1,024 tokens), how often its page is read (every
0.1 to 10 s), whether the page counts prompt tokens, whether the log tells first tokens, and whether
each engine serves two models, which its page does not tell apart. Nothing is configured: blocks,
index, speeds, limits and the queue are the picker's defaults. Each of the traffics runs at 95 % of
what the fewest requests in flight sustain there, under `auto` and `oracle-exact`, which knows all
caches and queues, on the same arrivals: ``--runs`` times with others, of which the sums are
compared. The first tenth of a run is not measured; *learned* leaves out the first quarter, in which
the picker learns.

A finished draw and traffic is stored in ``--out`` at once (``bench/journal.py``), so the same
command on the same code goes on where it was stopped.

Of the worst draws, ``beside.py`` says what the picker did not know: shares of the oracle's time
that single choices cost, on the same past. The tables are Markdown; with ``--json`` there is a line
for each draw and traffic instead. About 4 s of CPU for each draw and traffic of three runs.

Seeds are new for each release, and no constant is chosen with them.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING

from bench.compare.beside import CAUSES, Costs, beside, simulated
from bench.compare.oracles import workload
from bench.engine import EngineConfig
from bench.journal import Journal, code_digest
from bench.simulate.experiment import CalibrationError, default_slo, saturation
from bench.simulate.measure import percentile
from bench.simulate.scenario import Scenario
from bench.simulate.schedulers.registry import make_scheduler
from bench.simulate.workload import of_models, recut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bench.simulate.workload import Workload
    from tidegate_api.pools import LimitMode

TRAFFIC = ("conversation", "sessions", "shared-prefix", "agents")
LOAD = 0.95
REQUESTS = 1_500
RUNS = 3
FIRST = 20_270_601
"""The first seed; that of this release."""
LONGEST = 400
"""Blocks that a cache has at least: the longest prompts of the traces must fit."""
WARM, LEARNED = 0.1, 0.25
"""Shares of a run that are not measured, in the table and as *learned*."""
KEYS = ("seed", "traffic")
BLOCKS = (16, 32, 64, 128, 256, 512, 1_024)
"""Tokens per block of an engine."""
TWO_MODELS = 0.25
"""Share of the fleets whose engines serve two models."""
BISECTIONS = 5
"""The rate of full load is right to 2 %."""


def between(chance: Random, low: float, high: float) -> float:
    """Return a number between two, uniform in the logarithm."""
    return low * float((high / low) ** chance.random())


def drawn(seed: int, limit: LimitMode = "auto") -> Scenario:
    """Return the fleet of a seed; without a limit nothing waits in the picker."""
    chance = Random(seed)  # noqa: S311 - repeatable
    engine = EngineConfig(
        prefill_rate=between(chance, 1_000, 40_000),
        base_s=between(chance, 0.002, 0.03),
        per_request_s=between(chance, 0.00005, 0.001),
        step_tokens=int(between(chance, 512, 8_192)),
        max_running=int(between(chance, 16, 512)),
        cache_blocks=int(between(chance, LONGEST, 4_000)),
    )
    fleet = Scenario(
        engine=engine,
        bytes_per_token=between(chance, 0.25, 8.0),
        telemetry_s=between(chance, 0.1, 10.0),
        counts=chance.random() < 0.75,
        first_tokens=chance.random() < 0.75,
        limit=limit,
        tells="observed",
        hold_s=0.0 if limit == "none" else 10.0,
    )
    tokens = chance.choice(BLOCKS)
    blocks = engine.cache_blocks * engine.block_tokens // tokens
    engine = replace(engine, block_tokens=tokens, cache_blocks=blocks)
    return replace(fleet, engine=engine, models=2 if chance.random() < TWO_MODELS else 1)


def jobs_of(traffic: str, requests: int, fleet: Scenario) -> Workload:
    """Return the jobs of a traffic as a drawn fleet gets them."""
    jobs = workload(traffic).first(requests)
    if fleet.models > 1:
        jobs = of_models(jobs, fleet.models)
    return recut(jobs, fleet.engine.block_tokens)


@dataclass(frozen=True)
class Found:
    """One draw under one traffic: `auto` over the oracle."""

    seed: int
    traffic: str
    rate: float
    """Requests per second."""
    mean: float
    p99: float
    learned_mean: float
    learned_p99: float

    @property
    def told(self) -> bool:
        """Whether the log tells first tokens."""
        return drawn(self.seed).first_tokens


def measured(
    seed: int, traffic: str, requests: int, runs: int, limit: LimitMode = "auto"
) -> Found | None:
    """Simulate a draw under a traffic; ``None`` if no rate is sustained."""
    fleet = drawn(seed, limit)
    jobs = jobs_of(traffic, requests, fleet)
    slo = default_slo(jobs, fleet)
    try:
        top = saturation(jobs, fleet, slo, policy="fewest-requests", bisections=BISECTIONS)
    except CalibrationError:
        return None
    rate = LOAD * top
    sums: dict[str, list[float]] = {}
    for policy in ("auto", "oracle-exact"):
        sums[policy] = [0.0] * 4
        for run in range(runs):
            records = simulated(jobs, fleet, partial(make_scheduler, policy), run, rate)
            parts: list[float] = []
            for share in (WARM, LEARNED):
                kept = records[int(share * len(records)) :]
                times = sorted(each.ttft_s for each in kept if each.ttft_s is not None)
                parts += (sum(times) / len(times), percentile(times, 0.99) or 0.0)
            sums[policy] = [old + new for old, new in zip(sums[policy], parts, strict=True)]
    ratios = [ours / theirs for ours, theirs in zip(*sums.values(), strict=True)]
    return Found(seed, traffic, rate, *ratios)


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
            f"{engine.block_tokens}",
            f"{fleet.models}",
            f"{fleet.telemetry_s:.2g} s",
            "yes" if fleet.counts else "no",
            "yes" if fleet.first_tokens else "no",
        )
    )


def summary(rows: Sequence[Found], traffic: Iterable[str]) -> list[str]:
    """Return the lines of the summary: the median and the worst draw of each traffic."""
    lines = [
        "| traffic | log | draws | median: mean / p99 | worst | learned, median | worst |",
        "|---|---|---|---|---|---|---|",
    ]
    groups = (("all", (True, False)), ("yes", (True,)), ("no", (False,)))
    for name in traffic:
        for group, told in groups:
            of = [each for each in rows if each.traffic == name and each.told in told]
            if not of:
                continue
            pairs = (
                [(each.mean, each.p99) for each in of],
                [(each.learned_mean, each.learned_p99) for each in of],
            )
            cells = [
                f"{choose(x for x, _ in pair):.2f} / {choose(y for _, y in pair):.2f}"
                for pair in pairs
                for choose in (median, max)
            ]
            lines.append(f"| {name} | {group} | {len(of)} | {' | '.join(cells)} |")
    return lines


def explained(found: Found, requests: int, limit: LimitMode = "auto") -> Costs:
    """Ask the picker beside the oracle in the first run of a draw."""
    fleet = drawn(found.seed, limit)
    return beside(jobs_of(found.traffic, requests, fleet), fleet, 0, found.rate)


def results(
    cases: Sequence[tuple[int, str]],
    measure: Callable[[int, str], Found | None],
    journal: Journal,
    processes: int,
) -> Iterator[tuple[int, str, Found | None]]:
    """Yield the results of draws and traffics in order; those that are stored are not run again."""
    known = {(row["seed"], row["traffic"]): row["found"] for row in journal.rows}
    left = [case for case in cases if case not in known]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        new = pool.map(measure, *zip(*left, strict=True)) if left else iter(())
        for seed, name in cases:
            if (seed, name) in known:
                stored = known[seed, name]
                yield seed, name, None if stored is None else Found(**stored)
                continue
            found = next(new)
            told = None if found is None else asdict(found)
            journal.add({"seed": seed, "traffic": name, "found": told})
            yield seed, name, found


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description="auto on fleets drawn at random.")
    parser.add_argument("--draws", type=int, default=30)
    parser.add_argument("--first", type=int, default=FIRST, help="the first seed")
    parser.add_argument("--traffic", default=",".join(TRAFFIC))
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--runs", type=int, default=RUNS, help="arrivals per draw and traffic")
    parser.add_argument("--limit", choices=("auto", "none"), default="auto", help="of the pool")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--worst", type=int, default=4, help="how many draws are explained")
    parser.add_argument("--json", action="store_true", help="a line for each result")
    parser.add_argument("--out", type=Path, default=Path("build/draws"), help="finished draws")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    conditions = {name: getattr(args, name) for name in ("requests", "runs", "limit")}
    conditions["code"] = code_digest()
    journal = Journal(args.out, "draws", conditions, KEYS)
    names = args.traffic.split(",")
    seeds = range(args.first, args.first + args.draws)
    cases = list(product(seeds, names))
    measure = partial(measured, requests=args.requests, runs=args.runs, limit=args.limit)
    rows: list[Found] = []
    if not args.json:
        head = ("seed", "bytes/token", "prefill/s", "step", "batch", "cache", "block", "models")
        print(f"| {' | '.join((*head, 'page', 'counts', 'log', *names))} |")
        print("|" + "---|" * (len(head) + 3 + len(names)))
    cells: list[str] = []
    for seed, _, found in results(cases, measure, journal, args.processes):
        if found is not None:
            rows.append(found)
        cells.append("-" if found is None else f"{found.mean:.2f} / {found.p99:.2f}")
        if args.json and found is not None:
            print(json.dumps({**asdict(found), "told": found.told}), flush=True)
        elif not args.json and len(cells) == len(names):
            print(f"| {seed} | {described(drawn(seed))} | {' | '.join(cells)} |", flush=True)
            cells = []
    if args.json:
        return
    print("", *summary(rows, names), sep="\n")
    print(f"\n| seed | traffic | mean / p99 | {' | '.join(CAUSES)} | first | dearest |")
    print("|" + "---|" * (5 + len(CAUSES)))
    worst = sorted(rows, key=lambda each: -max(each.mean, each.p99))
    for each in worst[: args.worst]:
        costs = explained(each, args.requests, args.limit)
        ratio = f"{each.mean:.2f} / {each.p99:.2f}"
        print(f"| {each.seed} | {each.traffic} | {ratio} | {costs.cells()} |", flush=True)


if __name__ == "__main__":
    main()
