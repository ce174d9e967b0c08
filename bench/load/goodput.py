"""Answers in time under overload, end to end: a real Envoy and picker before emulated engines.

    python bench/load/goodput.py [--engines declared,observed,decoupled] [--traffic plain]
        [--loads 0.5,1,3] [--fixed 2,3,4,8] [--swept 2] [--seconds 20] [--out build/goodput]

Three engines tell of their slots as vLLM does (``observed``: what runs and what waits), as Triton
does of a model with instances (``declared``, answers come whole), or not at all (``decoupled``:
Triton, streamed; slots are learned). Callers send at their times whatever comes back, once, and
leave when they have had no byte for ``PATIENCE`` times the first limit. An answer is in time if its
first byte and its end are within the limits of the traffic, which stand in ``TRAFFIC`` before any
run; of whole answers only the end counts. Triton goes on with what callers have left, vLLM drops
it. Slots are learned from 50 answers, and caches are cold at first, so such runs begin with
``CALM_S`` seconds at ``CALM``, not measured.

Each load (a share of what the engines sustain without a wait) is run with the defaults, and those
of ``--swept`` (default: all) with each fixed ``per_endpoint_in_flight``, and with neither limit nor
queue (``off``). The last columns are the defaults' share of the best fixed limit at that load, and
of all requests with the defaults those that were refused and those that waited in the picker, calm
ones included. A finished run is stored at once (``bench/journal.py``), so the same command goes on
where it was stopped. A run takes about twice its seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.emulator.dialects import MODEL
from bench.emulator.fleet import EmulatedFleet
from bench.emulator.text import prompt_text
from bench.engine import EngineConfig
from bench.journal import Journal, code_digest
from bench.peers.contenders import CHAT
from bench.peers.envoys import SESSION
from bench.simulate.generators import PACE_PER_REPLICA, shared_prefix
from bench.simulate.workload import Job, Workload, arrivals
from bench.suites import workloads
from tidegate.stack.local import LocalStack
from tidegate.stack.tritons.replica import TritonReplica

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

KEYS: Final = ("engine", "traffic", "load", "setting")
REPLICAS: Final = 3
JOBS: Final = 4_000
PATIENCE: Final = 3.0
WARMUP: Final = 0.4
"""Share of the requests at the start that is not measured."""
CALM: Final = 0.8
CALM_S: Final = {"decoupled": 40.0, "shared-prefix": 10.0}
"""Seconds at that load before a run, by engines or traffic; the longest counts."""
DEFAULTS: Final = "defaults"
OFF: Final = "off"
GENERATE: Final = f"/v2/models/{MODEL}/generate"
ENGINES: Final = {
    # how the engine tells: metrics page, configuration, path of requests
    "observed": ("vllm", "", CHAT),
    "declared": ("triton", "instances", GENERATE),
    "decoupled": ("triton", "decoupled", f"{GENERATE}_stream"),
}


class Traffic(NamedTuple):
    """Requests, the engines that serve them, and when an answer is in time."""

    engine: EngineConfig
    rate: float
    """Requests per second that the engines sustain: ``plain`` by their slots, ``shared-prefix``
    with 99 % of first tokens in time in the simulator (``saturation``)."""
    first_s: float
    total_s: float


TRAFFIC: Final = {
    "plain": Traffic(EngineConfig(max_running=2, base_s=0.02), 12.0, 2.0, 4.0),
    "shared-prefix": Traffic(EngineConfig(max_running=8, prefill_rate=12_000.0), 6.7, 2.0, 12.0),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    engine: str
    traffic: str
    load: float
    setting: str

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the values of ``KEYS``."""
        return (self.engine, self.traffic, self.load, self.setting)


def jobs_of(traffic: str) -> Workload:
    """Return the requests of a traffic; ``plain``: short prompts, answers of half a second."""
    rng = Random(7)  # noqa: S311 - runs must repeat
    if traffic == "shared-prefix":
        return shared_prefix(JOBS, rng, PACE_PER_REPLICA * REPLICAS)
    jobs = [
        Job(index, float(index), 64, 1 + min(120, int(rng.expovariate(1 / 24.0))), ())
        for index in range(JOBS)
    ]
    return Workload(traffic, jobs)


def fleet_of(cell: Cell) -> Callable[[dict[str, Any]], None]:
    """Return the change of the default fleet that a run needs: as little as can be."""

    def change(fleet: dict[str, Any]) -> None:
        pool = fleet["pools"][0]
        pool["variants"] = [{"name": "stable", "weight": 1}]
        pool.pop("circuit_breaker", None)
        pool.pop("routing", None)
        if cell.engine == "observed":
            pool["match"]["paths"] = [CHAT]
        for endpoint in pool["endpoints"]:
            del endpoint["grpc"]
        if cell.setting == OFF:
            pool["routing"] = {"limit": "none", "max_wait": 0}
        elif cell.setting != DEFAULTS:
            pool["circuit_breaker"] = {"per_endpoint_in_flight": int(cell.setting)}

    return change


class Sender:
    """Sends requests at their times and judges the answers.

    Args:
        session: Client.
        url: Where to send.
        traffic: When an answer is in time.
        whole: Whether answers come whole.
    """

    def __init__(
        self, session: aiohttp.ClientSession, url: str, traffic: Traffic, *, whole: bool
    ) -> None:
        self._session, self._url, self._traffic, self._whole = session, url, traffic, whole
        self._start = time.perf_counter() + 1.0

    async def send(self, body: bytes, at: float, session: str | None) -> str:
        """Send one request; return ``good``, ``late``, ``left``, ``lost`` or its status."""
        await asyncio.sleep(max(0.0, self._start + at - time.perf_counter()))
        traffic, began = self._traffic, self._start + at
        headers = {"content-type": "application/json", **({SESSION: session} if session else {})}
        patience = PATIENCE * (traffic.total_s if self._whole else traffic.first_s)
        try:
            async with asyncio.timeout(patience) as bound:
                async with self._session.post(self._url, data=body, headers=headers) as answer:
                    await answer.content.readany()
                    first_s = time.perf_counter() - began
                    bound.reschedule(None)
                    await answer.read()
                    total_s = time.perf_counter() - began
        except TimeoutError:
            return "left"
        except aiohttp.ClientError:
            return "lost"
        if answer.status != 200:
            return str(answer.status)
        in_time = total_s <= traffic.total_s and (self._whole or first_s <= traffic.first_s)
        return "good" if in_time else "late"


async def held(session: aiohttp.ClientSession, page: str) -> float:
    """Return how many requests have waited in the picker."""
    async with session.get(f"http://{page}/metrics") as answer:
        text = await answer.text()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "tidegate_picker_queue_seconds_count"
    )


@asynccontextmanager
async def running(
    engine: str, traffic: Traffic, fleet: Callable[[dict[str, Any]], None]
) -> AsyncIterator[tuple[aiohttp.ClientSession, LocalStack, str]]:
    """Run engines behind Envoy and picker; yield a client, the stack, and where to send.

    Args:
        engine: One of ``ENGINES``.
        traffic: What the engines are like.
        fleet: Changes the default fleet.
    """
    page, config, path = ENGINES[engine]
    made = replace(traffic.engine, cache_blocks=3_000)
    connector = aiohttp.TCPConnector(limit=0)
    engines = EmulatedFleet(REPLICAS, scale=1.0, page=page, engine=made, config=config)
    async with engines, aiohttp.ClientSession(connector=connector) as session:
        replicas = [
            TritonReplica(
                name=each.name,
                http=each.http,
                grpc=each.grpc,
                metrics=each.http,
                models={MODEL: ("1",)},
            )
            for each in engines.places
        ]
        async with LocalStack(
            replicas=replicas, models=(MODEL,), fleet=fleet, concurrency=1
        ) as stack:
            yield session, stack, f"http://{stack.http_address}{path}"


def bodies_of(engine: str, traffic: str, jobs: Sequence[Job]) -> list[bytes]:
    """Return the bodies of requests as engines of a kind take them."""
    render = workloads.chat if engine == "observed" else workloads.generate
    return [render(prompt_text(job, traffic)) for job in jobs]


async def measure(cell: Cell, work: Workload, seconds: float) -> dict[str, Any]:
    """Run a cell; return its row."""
    traffic = TRAFFIC[cell.traffic]
    rate = traffic.rate * cell.load
    calm_s = max(CALM_S.get(cell.engine, 0.0), CALM_S.get(cell.traffic, 0.0))
    before = int(traffic.rate * CALM * calm_s)
    part = work.first(before + max(2, int(rate * seconds)))
    rng = Random(1)  # noqa: S311 - runs must repeat
    times = arrivals(work.first(before), traffic.rate * CALM, rng) if before else []
    late = replace(part, jobs=part.jobs[before:])
    times = [*times, *(calm_s + at for at in arrivals(late, rate, rng))]
    bodies = bodies_of(cell.engine, cell.traffic, part.jobs)
    async with running(cell.engine, traffic, fleet_of(cell)) as (session, stack, url):
        held_before = await held(session, stack.picker_metrics)
        sender = Sender(session, url, traffic, whole=cell.engine == "declared")
        sent = zip(bodies, times, part.jobs, strict=True)
        ends = await asyncio.gather(*(sender.send(b, at, j.session) for b, at, j in sent))
        waited = await held(session, stack.picker_metrics) - held_before
    first = before + int((len(ends) - before) * WARMUP)
    kept, span_s = ends[first:], times[-1] - times[first]
    return {
        **dict(zip(KEYS, cell.key, strict=True)),
        "goodput": kept.count("good") / span_s,
        "ends": {each: kept.count(each) for each in sorted(set(kept))},
        "refused": (ends.count("429") + ends.count("503")) / len(ends),
        "held": waited / len(ends),
        "load_average": os.getloadavg()[0],
    }


def table(rows: Sequence[dict[str, Any]], fixed: Sequence[str]) -> str:
    """Return the Markdown table of all runs."""
    found = {tuple(row[key] for key in KEYS): row for row in rows}
    heads = ["engines, traffic", "load", *fixed, OFF, DEFAULTS, "share of best", "refused", "held"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for engine, traffic, load in dict.fromkeys(key[:3] for key in found):
        runs = {name: found.get((engine, traffic, load, name)) for name in (*fixed, OFF, DEFAULTS)}
        rates = {name: each["goodput"] for name, each in runs.items() if each is not None}
        best = max((rates[name] for name in fixed if name in rates), default=0.0)
        ours = runs[DEFAULTS]
        share = "" if ours is None or not best else f"{ours['goodput'] / best:.2f}"
        back = " | " if ours is None else f"{ours['refused']:.1%} | {ours['held']:.1%}"
        told = " | ".join(f"{rates[n]:.1f}" if n in rates else "" for n in (*fixed, OFF, DEFAULTS))
        lines.append(f"| {engine}, {traffic} | {load:g} | {told} | {share} | {back} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print."""
    parser = argparse.ArgumentParser(description="Answers in time under overload, end to end.")
    parser.add_argument("--engines", default=",".join(ENGINES), help="comma-separated")
    parser.add_argument("--traffic", default=",".join(TRAFFIC), help="comma-separated")
    parser.add_argument("--loads", default="0.5,0.8,1,1.5,2,3")
    parser.add_argument("--fixed", default="", help="default: 1 to 4 times the slots")
    parser.add_argument("--swept", help="loads at which fixed limits are run; default: all")
    parser.add_argument("--seconds", type=float, default=20.0, help="of arrivals in a run")
    parser.add_argument("--out", type=Path, default=Path("build/goodput"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    conditions = {"code": code_digest(), "seconds": args.seconds}
    journal = Journal(args.out, "goodput", conditions, KEYS)
    for traffic in args.traffic.split(","):
        slots = TRAFFIC[traffic].engine.max_running
        usual = [str(each) for each in dict.fromkeys((slots, slots + 1, 2 * slots, 4 * slots))]
        fixed = [each for each in args.fixed.split(",") if each] or usual
        work = jobs_of(traffic)
        loads = [float(each) for each in args.loads.split(",")]
        swept = {float(each) for each in (args.swept or args.loads).split(",")}
        for engine, load in product(args.engines.split(","), loads):
            for setting in (DEFAULTS, *fixed, OFF) if load in swept else (DEFAULTS,):
                cell = Cell(engine, traffic, load, setting)
                if cell.key not in journal:
                    journal.add(asyncio.run(measure(cell, work, args.seconds)))
        rows = [row for row in journal.rows if row["traffic"] == traffic]
        print(f"\n{table(rows, fixed)}")


if __name__ == "__main__":
    main()
