"""Error of the simulator's fleet model compared with the real toy-llm.

    python bench/fleet_model.py [--json]

Takes requests of the conversation trace and of the generator `sessions`, scaled from blocks of 512
tokens to the toy model's 16. Replays them in open loop through a real Envoy and picker to two
Triton replicas, then in the simulator with the engine parameters of models/toy-llm/config.pbtxt and
the same arrival times. Prints both and the errors. Each run has its own prompts, so that it starts
with cold caches. Takes about 80 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from bench.engine import EngineConfig
from bench.simulate.fleet import SimulatedFleet
from bench.simulate.generators import sessions
from bench.simulate.measure import percentile
from bench.simulate.replica import SimulatedReplica
from bench.simulate.scenario import Scenario
from bench.simulate.schedulers.base import World
from bench.simulate.schedulers.registry import make_scheduler
from bench.simulate.traces import read_trace
from bench.simulate.workload import Job, Workload, arrivals
from tidegate.demo.clients import AnswerError, Clients
from tidegate.demo.operator import Operator
from tidegate.stack.local import LocalStack

ROOT = Path(__file__).resolve().parents[1]
TRACE = ROOT / "bench" / "traces" / "conversation_trace.jsonl"
BLOCK_TOKENS = 16
BLOCK_CHARS = 4 * BLOCK_TOKENS
SHRINK = 512 // BLOCK_TOKENS
REPLICAS = 2
ENGINE = EngineConfig(
    prefill_rate=1e6 / 300,
    base_s=0.005,
    per_request_s=0.0005,
    step_tokens=256,
    max_running=16,
    cache_blocks=1024,
    block_tokens=BLOCK_TOKENS,
    base_always=False,
    shared_budget=False,
)
"""The parameters of models/toy-llm/config.pbtxt."""
FLEET = {
    "pools": {"llm": {"routing": {"block_chars": BLOCK_CHARS, "index_blocks": ENGINE.cache_blocks}}}
}


RUNS = (
    ("sessions", "auto", 26.0, 400),
    ("sessions", "round-robin", 26.0, 400),
    ("conversation", "round-robin", 13.0, 200),
)
"""Traffic, policy, requests per second, number of requests.

auto runs first, because it alone learns from earlier runs, and the simulated one has learned
nothing."""


@dataclass(frozen=True)
class Run:
    """One replay."""

    policy: str
    workload: Workload
    times: list[float]


@dataclass(frozen=True)
class Numbers:
    """Compared measurements; times in seconds."""

    ttft: list[float]
    e2e: list[float]
    hits: float

    def values(self) -> dict[str, float]:
        """Return the statistics by name."""
        found = {"TTFT mean": sum(self.ttft) / len(self.ttft)}
        for name, times, share in (
            ("TTFT p50", self.ttft, 0.5),
            ("TTFT p90", self.ttft, 0.9),
            ("e2e p50", self.e2e, 0.5),
            ("e2e p90", self.e2e, 0.9),
        ):
            found[name] = percentile(sorted(times), share) or 0.0
        found["e2e mean"] = sum(self.e2e) / len(self.e2e)
        return found


def small(source: str, count: int) -> Workload:
    """Return the first requests of a traffic source, scaled to the toy model's blocks."""
    rng = Random(0)  # noqa: S311 - repeatable
    trace = sessions(count, rng, 1.2) if source == "sessions" else read_trace(TRACE)
    jobs = [
        Job(
            job.index,
            job.at,
            max(1, job.input_tokens // SHRINK),
            max(1, job.output_tokens // SHRINK),
            job.blocks[: job.input_tokens // SHRINK // BLOCK_TOKENS],
            job.session,
        )
        for job in trace.jobs[:count]
    ]
    return Workload(source, jobs, trace.slotted, BLOCK_TOKENS)


def prompt(job: Job, salt: str) -> str:
    """Return a prompt whose blocks are equal iff the job's are; each salt has its own blocks."""
    blocks = [f"{salt}{block & (2**64 - 1):016x}".ljust(BLOCK_CHARS, ".") for block in job.blocks]
    text = "".join(blocks)
    return (
        text
        + f"{job.index}/".ljust(4 * job.input_tokens - len(text), "#")[
            : 4 * job.input_tokens - len(text)
        ]
    )


async def replayed(clients: Clients, jobs: list[Job], times: list[float], salt: str) -> Numbers:
    """Send every job at its arrival time, from which latencies count."""
    start = time.perf_counter() + 0.5
    texts = [prompt(job, salt) for job in jobs]

    async def send(job: Job, text: str, at: float) -> tuple[float, float, int, int]:
        await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
        late = time.perf_counter() - start - at
        answer = await clients.generate_stream(text, job.output_tokens, job.session)
        end = time.perf_counter() - start - at
        return late + answer.ttft_s, end, answer.cached_tokens, answer.input_tokens

    rows = await asyncio.gather(*map(send, jobs, texts, times))
    hits = sum(row[2] for row in rows) / sum(row[3] for row in rows)
    return Numbers([row[0] for row in rows], [row[1] for row in rows], hits)


def simulated(policy: str, workload: Workload, times: list[float]) -> Numbers:
    """Run the same jobs in the simulator."""
    scenario = Scenario(replicas=REPLICAS, engine=ENGINE)
    fleet = [SimulatedReplica(ENGINE) for _ in range(REPLICAS)]
    world = World(scenario, Random(0), fleet, BLOCK_TOKENS)  # noqa: S311 - repeatable
    records = SimulatedFleet(scenario, fleet, make_scheduler(policy, world)).run(
        workload.jobs, times
    )
    hit = sum(each.matched for each in records) * BLOCK_TOKENS
    return Numbers(
        [each.ttft_s or 0.0 for each in records],
        [each.e2e_s or 0.0 for each in records],
        hit / sum(each.job.input_tokens for each in records),
    )


async def real(runs: list[Run]) -> list[Numbers]:
    """Replay each run on a local stack."""
    found = []
    # The last replica is the canary, which receives no requests.
    async with (
        LocalStack(replicas=REPLICAS + 1, models=("toy-llm",), fleet=FLEET) as stack,
        Clients(stack.http_url, stack.grpc_address) as clients,
        Operator(stack.admin_address) as operator,
    ):
        for number, run in enumerate(runs):
            await operator.set_policy("llm", run.policy)
            jobs = list(run.workload.jobs)
            found.append(await replayed(clients, jobs, run.times, f"{number}"))
    return found


def main() -> None:
    """Replay, simulate and print the comparison."""
    parser = argparse.ArgumentParser(description="The fleet model against real replicas.")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    runs = []
    for source, policy, rate, count in RUNS:
        workload = small(source, count)
        times = arrivals(workload, rate, Random(1))  # noqa: S311 - repeatable
        runs.append(Run(policy, workload, times))
    measured = asyncio.run(real(runs))
    table = Table(box=None, pad_edge=False)
    for name in ("traffic", "policy", "number", "real", "simulated", "error"):
        table.add_column(
            name, justify="right" if name in {"real", "simulated", "error"} else "left"
        )
    rows = []
    for run, theirs in zip(runs, measured, strict=True):
        ours = simulated(run.policy, run.workload, run.times)
        label = (run.workload.name, run.policy)
        for name, there in theirs.values().items():
            here = ours.values()[name]
            rows.append((*label, name, there, here))
            error = f"{here / there - 1:+.1%}"
            table.add_row(*label, name, f"{there * 1e3:.0f} ms", f"{here * 1e3:.0f} ms", error)
        rows.append((*label, "hits", theirs.hits, ours.hits))
        points = f"{(ours.hits - theirs.hits) * 100:+.1f} points"
        table.add_row(*label, "hits", f"{theirs.hits:.1%}", f"{ours.hits:.1%}", points)
    if args.json:
        print(json.dumps(rows))
    else:
        Console(width=100).print(table)


if __name__ == "__main__":
    try:
        main()
    except AnswerError as error:
        raise SystemExit(str(error)) from None
