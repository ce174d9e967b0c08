"""A running fleet beside the simulator and its oracles, on the same arrivals.

    python bench/compare/decisions.py [--traffic conversation,agents] [--loads 0.7,0.95] [--seeds 5]
    python bench/compare/decisions.py --restart [--traffic conversation] [--seeds 3]
    python bench/compare/decisions.py --contenders llm-d-chart [--seeds 3]
    python bench/compare/decisions.py --draw 20270131 --loads 0.95 --seeds 2
    python bench/compare/decisions.py --bytes-per-token 0.25 --loads 0.95 --seeds 7

With ``--draw`` engines and text are those of a fleet drawn at random (``draws.py``); with
``--bytes-per-token`` the text alone is another one. The picker has its defaults and is told
nothing. *vs the same choices* is then what Envoy, picker and machine add. The last table takes it
out: it has the times of the fleet's choices in the simulator, where oracles have no hop either.

Each cell replays requests through a real Envoy and picker to eight emulated replicas, at life speed
(``replay.py``), and notes which replica served each. The simulator then gets the same requests at
the same times:

* under several policies, which choose by themselves;
* under its ``auto``, which is asked for its prices at each request, but the request goes where the
  fleet sent it, so that both have the same past at the next one.

Seeds have different requests: the first cell's worth of the traffic, the next, and so on. Loads are
shares of what least-in-flight sustains. Prints Markdown: times to the first token of the fleet,
their change against simulated policies, paired by seed, with Student's 95 % interval (bold where it
misses its aim), and the share of requests for which both routers choose alike. With ``--restart``
five replicas restart after a third of the run, and each cell runs with and without. With
``--contenders`` other routers get the same requests (``docs/reference/bench.md``: how to install).

A finished cell is stored at once (``bench/journal.py``), so the same command goes on where it was
stopped. A cell takes its ``--seconds`` and about 15 s more, and
needs two cores that are mostly idle.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from bench.compare.draws import drawn as drawn_fleet
from bench.compare.followed import simulated, summary
from bench.compare.oracles import FLEET, sharing, workload
from bench.compare.replay import ReplayPlan, Served, replay
from bench.compare.table import beside_peers, restarts, times_to_first_token, without_hop
from bench.emulator.text import CHARS_PER_TOKEN, CHARS_VARIABLE
from bench.journal import Journal, code_digest
from bench.peers.contenders import TIDEGATE
from bench.simulate.experiment import CALIBRATOR, default_slo, saturation
from bench.simulate.measure import percentile
from bench.simulate.workload import BLOCK_TOKENS, Workload, arrivals
from bench.suites.context import busy_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.simulate.scenario import Scenario
    from bench.simulate.workload import Job

KEYS: Final = ("traffic", "load", "seed", "restart", "contender")
WARMUP: Final = 0.25
"""Share of the requests at the start that is not measured."""
RESTART_SHARE: Final = 1 / 3
"""When replicas restart, as a share of the run; requests from then on are measured."""
RAMP_S: Final = 30.0
"""The default slow-start window of a pool, seconds."""
DRAWS: Final = 4
BESIDE: Final = ("auto", "probe", "oracle", "oracle-exact")


@dataclass(frozen=True, slots=True)
class Cell:
    """One replay."""

    traffic: str
    load: float
    seed: int
    restart: str = ""
    """Empty, or ``with`` or ``without`` in runs that measure a restart."""
    contender: str = TIDEGATE

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the values of ``KEYS``."""
        return (self.traffic, self.load, self.seed, self.restart, self.contender)


def cells(
    traffic: Sequence[str],
    loads: Sequence[float],
    seeds: int,
    contenders: Sequence[str] = (TIDEGATE,),
    *,
    restart: bool = False,
) -> Iterator[Cell]:
    """Yield all cells, seed by seed, so that an interrupted run has whole seeds."""
    each = product(traffic, loads, ("without", "with") if restart else ("",), contenders)
    for seed, (name, load, which, contender) in product(range(seeds), list(each)):
        yield Cell(name, load, seed, which, contender)


def answered(part: Workload, times: Sequence[float]) -> tuple[Workload, list[float]]:
    """Return the jobs and times of clients that wait for answers, in order of time.

    A load above the traffic's own compresses the pauses of sessions, so that steps come before the
    answer to the one before. Here such a step, and what follows it, comes when an idle replica with
    an empty cache had answered: no policy determines the times.
    """
    engine = FLEET.engine
    free: dict[str, float] = {}
    waited: list[tuple[float, Job]] = []
    for job, intended in zip(part.jobs, times, strict=True):
        at = intended
        if job.session is not None:
            at = max(at, free.get(job.session, at))
            decode_s = job.output_tokens * (engine.base_s + engine.per_request_s)
            free[job.session] = at + job.input_tokens / engine.prefill_rate + decode_s
        waited.append((at, job))
    waited.sort(key=lambda each: each[0])
    return replace(part, jobs=[job for _, job in waited]), [at for at, _ in waited]


def slice_of(
    whole: Workload, rate: float, seconds: float, seed: int
) -> tuple[Workload, list[float]]:
    """Return the jobs of a seed and their arrival times, seconds.

    Args:
        whole: The traffic.
        rate: Mean arrivals per second; the gaps are scaled to it.
        seconds: Length of the run.
        seed: The run; each takes the jobs after those of the one before.

    Raises:
        ValueError: The traffic has not as many jobs.
    """
    count = max(2, int(rate * seconds))
    jobs = whole.jobs[seed * count : (seed + 1) * count]
    if len(jobs) < count:
        raise ValueError(f"{whole.name} has {len(whole.jobs)} jobs; seed {seed} needs more")
    part = replace(whole, jobs=jobs)
    return part, arrivals(part, rate, Random(seed))  # noqa: S311 - repeatable


def run(
    cell: Cell,
    whole: Workload,
    top: float,
    seconds: float,
    fleet: Scenario,
    *,
    early: bool,
    causal: bool,
) -> dict[str, Any]:
    """Replay a cell, simulate it and return its row."""
    began = time.monotonic()
    part, times = slice_of(whole, top * cell.load, seconds, cell.seed)
    if causal:
        part, times = answered(part, times)
    restart_at = seconds * RESTART_SHARE if cell.restart else None
    restarts_at = restart_at if cell.restart == "with" else None
    scenario = replace(fleet, slow_start_s=RAMP_S, restart_at_s=restarts_at)
    plan = ReplayPlan(
        part.jobs,
        times,
        f"{cell.traffic} {cell.seed}",
        scenario.replicas,
        scenario.engine.cache_blocks,
        early_headers=early,
        cache_planned=fleet.engine.cache_planned,
        restart_at_s=restarts_at,
        restarted=scenario.restarted_replicas,
        contender=cell.contender,
        engine=fleet.engine,
    )
    load_before, busy_s, clock = os.getloadavg()[0], busy_seconds(), time.monotonic()
    rows = asyncio.run(replay(plan))
    busy = (busy_seconds() - busy_s) / (time.monotonic() - clock) / (os.cpu_count() or 1)
    count = len(part.jobs)
    kept = [
        number
        for number in range(count)
        if (number >= int(count * WARMUP) if restart_at is None else times[number] >= restart_at)
    ]
    return {
        **dict(zip(KEYS, cell.key, strict=True)),
        "requests": count,
        "measured": len(kept),
        "lost": sum(row.ttft_s is None for row in rows),
        **(
            {}
            if cell.restart or cell.contender != TIDEGATE
            else _agreement(part, times, rows, kept, fleet)
        ),
        "ttft": {
            "fleet": times_of([row.ttft_s for row in rows], kept),
            **{name: drawn(part, times, name, scenario, kept) for name in BESIDE},
        },
        "late_p99_s": percentile(sorted(row.late_s for row in rows), 0.99),
        "machine_busy": round(busy, 3),
        "load_average": [load_before, os.getloadavg()[0]],
        "replicas": [row.replica for row in rows],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "took_s": round(time.monotonic() - began, 1),
    }


def _agreement(
    part: Workload,
    times: Sequence[float],
    rows: Sequence[Served],
    kept: Sequence[int],
    fleet: Scenario,
) -> dict[str, Any]:
    """Follow the fleet's choices; nothing if a request was lost, as the past is unknown then."""
    choices = {
        job.index: row.replica
        for job, row in zip(part.jobs, rows, strict=True)
        if row.replica is not None
    }
    if len(choices) < len(rows):
        return {}
    ttft, compared = simulated(part.jobs, times, "auto", fleet, choices)
    return {"agreement": summary(compared), "followed": times_of(ttft, kept)}


def drawn(
    part: Workload, times: Sequence[float], policy: str, scenario: Scenario, kept: Sequence[int]
) -> dict[str, float]:
    """Return simulated times, the means over ``DRAWS`` of the choices among equal replicas.

    An oracle's mean over a minute differs by 3 to 5 % with these choices alone.
    """
    runs = [
        times_of(simulated(part.jobs, times, policy, scenario, draw=draw)[0], kept)
        for draw in range(DRAWS)
    ]
    return {key: sum(run[key] for run in runs) / DRAWS for key in runs[0]}


def times_of(ttft: Sequence[float | None], kept: Sequence[int]) -> dict[str, float]:
    """Return mean and p99 of the measured times, without lost requests."""
    values = sorted(value for number in kept if (value := ttft[number]) is not None)
    return {"mean": sum(values) / len(values), "p99": percentile(values, 0.99) or 0.0}


def told(fleet: Scenario) -> Scenario:
    """Return a drawn fleet as emulated engines are and tell of it.

    They have one model and the trace's blocks, pages of each second and the log.
    """
    engine = fleet.engine
    blocks = engine.cache_blocks * engine.block_tokens // BLOCK_TOKENS
    engine = replace(engine, block_tokens=BLOCK_TOKENS, cache_blocks=blocks)
    return replace(fleet, engine=engine, models=1, telemetry_s=1.0, counts=True, first_tokens=True)


def in_force(bytes_per_token: float | None) -> None:
    """Start this program anew if the processes of the run take a token for other text."""
    if bytes_per_token is not None and bytes_per_token != CHARS_PER_TOKEN:
        os.environ[CHARS_VARIABLE] = repr(bytes_per_token)
        os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 - this program again


def main() -> None:
    """Replay, simulate, store and print."""
    parser = argparse.ArgumentParser(description="A running fleet beside the simulator.")
    parser.add_argument("--traffic", default="conversation", help="names or trace files (.jsonl)")
    parser.add_argument("--loads", default="", help="default: 0.7,0.95; with --restart 0.7")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--restart", action="store_true", help="five of eight replicas restart")
    parser.add_argument("--contenders", default="", help="other routers, comma-separated")
    parser.add_argument("--draw", type=int, help="a fleet drawn at random, by its seed")
    parser.add_argument("--bytes-per-token", type=float, help="of the text, default 4")
    parser.add_argument("--late-headers", action="store_true", help="headers with the first token")
    parser.add_argument(
        "--answered", action="store_true", help="clients wait for the answer before"
    )
    parser.add_argument(
        "--cache-planned",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="prompts in work share blocks",
    )
    parser.add_argument("--out", type=Path, default=Path("build/decisions"))
    args = parser.parse_args()
    usual = FLEET if args.draw is None else told(drawn_fleet(args.draw))
    if args.bytes_per_token is not None:
        usual = told(replace(usual, bytes_per_token=args.bytes_per_token))
    in_force(usual.bytes_per_token)
    args.out.mkdir(parents=True, exist_ok=True)
    conditions = {
        "code": code_digest(),
        "seconds": args.seconds,
        "early_headers": not args.late_headers,
        "answered": args.answered,
        "cache_planned": args.cache_planned,
        **({} if args.draw is None else {"draw": args.draw}),
        **({} if args.bytes_per_token is None else {"bytes_per_token": args.bytes_per_token}),
    }
    journal = Journal(args.out, "decisions", conditions, KEYS)
    names = [each for each in args.traffic.split(",") if each]
    loads = args.loads or ("0.7" if args.restart else "0.7,0.95")
    plan = cells(
        names, [float(each) for each in loads.split(",")], args.seeds, restart=args.restart
    )
    known: dict[str, tuple[Workload, float]] = {}
    for cell in plan:
        if cell.key in journal:
            continue
        if cell.traffic not in known:
            whole = workload(cell.traffic)
            slo = default_slo(whole, usual)
            policy = CALIBRATOR if args.draw is None else "fewest-requests"
            known[cell.traffic] = whole, saturation(whole, usual, slo, policy=policy)
        early = not args.late_headers
        whole, top = known[cell.traffic]
        fleet = sharing(usual, planned=args.cache_planned)
        row = run(cell, whole, top, args.seconds, fleet, early=early, causal=args.answered)
        journal.add(row)
    print(times_to_first_token(journal.rows))
    print(restarts(journal.rows))
    print(beside_peers(journal.rows))
    print(without_hop(journal.rows))


if __name__ == "__main__":
    main()
