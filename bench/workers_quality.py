"""Quality of the decisions of several workers compared with one picker, in simulated time.

    python -m bench.workers_quality [--workers 2] [--delay 0.015] [--requests 3000] [--seeds 8]
    python -m bench.workers_quality --hosts [--requests 3000] [--seeds 8]

Eight simulated replicas and the policy ``auto``: one picker, several workers that replicate events
to each other with a delay, and several workers that do not. The routers and events are those of the
picker. The jobs come from a trace or from the ``sessions`` generator. Prints TTFT, end-to-end
latency and the fraction of cached tokens, as medians over seeds, and the ratio to one picker,
paired by seed. All variants of a seed have the same arrivals.

With ``--hosts``: groups of pickers of several hosts, whose records arrive as late as those of
workers, and the link's delay later. Prints a table in Markdown: the mean TTFT of one picker, and
that of each group as a ratio to it, the median of seeds and their extremes.
"""

from __future__ import annotations

import argparse
from collections import deque
from functools import cache, partial
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Final, cast

from rich.console import Console
from rich.table import Table

from bench.simulate.fleet import SimulatedFleet
from bench.simulate.generators import sessions, shared_prefix
from bench.simulate.measure import RunMetrics, measure
from bench.simulate.replica import SimulatedReplica
from bench.simulate.scenario import Scenario
from bench.simulate.schedulers.base import World
from bench.simulate.schedulers.production import ProductionScheduler
from bench.simulate.schedulers.several_pickers import SeveralPickers
from bench.simulate.traces import read_trace
from bench.simulate.workload import arrivals
from ext_proc.workers.account import Account
from ext_proc.workers.bus import READ_AGAIN_S, SOON_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.simulate.schedulers.base import SimulatedChoice, SimulatedScheduler
    from bench.simulate.workload import Job, Workload
    from ext_proc.routing.peers import ReplicationEvent
    from ext_proc.workers.account import LocalEvent
    from ext_proc.workers.records import Message

LATE_S = SOON_S + READ_AGAIN_S
"""Maximum delay until an event of one worker is known to its peers."""


class SharedPickers(SeveralPickers):
    """Workers that replicate the picker's events to each other with a delay.

    The first event after a pause starts a batch, which is sent when the delay has passed.

    Args:
        policy: Policy of the pool.
        world: The simulation; its scenario contains the number of workers.
        delay_s: Time from a batch's first event to its end, seconds.
        link_s: Time from a batch's end to its delivery, seconds: that of a network.
    """

    def __init__(self, policy: str, world: World, delay_s: float, link_s: float = 0.0) -> None:
        super().__init__(partial(ProductionScheduler, policy), world)
        self._delay_s = delay_s
        self._link_s = link_s
        self._routers = [each._router for each in self._schedulers]  # noqa: SLF001 - as the bus does
        self._accounts = [Account() for _ in self._routers]
        self._batches: list[list[Message]] = [[] for _ in self._routers]
        self._due: deque[tuple[float, int]] = deque()
        self._under_way: deque[tuple[float, int, list[Message]]] = deque()
        self._waiting: set[int] = set()
        """Workers with an open batch."""
        self._now = 0.0
        for number, router in enumerate(self._routers):
            router.ledger.on_event = partial(self._tell, number)
            router._on_event = partial(self._tell, number)  # noqa: SLF001 - likewise
            router.trials.on_event = partial(self._tell, number)

    def _tell(self, number: int, event: LocalEvent) -> None:
        self._batches[number] += self._accounts[number].take(event, self._now)
        if number not in self._waiting:
            self._waiting.add(number)
            self._due.append((self._now + self._delay_s, number))

    def _arrive(self, now: float) -> None:
        """Deliver all batches that are due."""
        while self._due and self._due[0][0] <= now:
            at, sender = self._due.popleft()
            self._waiting.discard(sender)
            words = [*self._batches[sender], *self._accounts[sender].sums()]
            self._batches[sender].clear()
            self._under_way.append((at + self._link_s, sender, words))
        while self._under_way and self._under_way[0][0] <= now:
            at, sender, words = self._under_way.popleft()
            for number, router in enumerate(self._routers):
                if number != sender:
                    for word in words:
                        router.peers.follow(sender, cast("ReplicationEvent", word), at)
        self._now = now

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:
        """Deliver due batches, then let a random worker choose."""
        self._arrive(now)
        return super().choose(job, now)

    def moved(self, job: Job, replica: int, now: float) -> None:
        """Deliver due batches, then forward to the job's worker."""
        self._arrive(now)
        super().moved(job, replica, now)

    def settled(self, job: Job, now: float) -> None:
        """Deliver due batches, then forward to the job's worker and forget the job."""
        self._arrive(now)
        super().settled(job, now)


def simulate(
    jobs: Workload,
    rate: float,
    seed: int,
    pickers: int,
    delay_s: float | None,
    link_s: float = 0.0,
) -> RunMetrics:
    """Run one simulation; ``delay_s`` is ``None`` for workers without replication."""

    def scheduler(world: World) -> SimulatedScheduler:
        if delay_s is None:
            return SeveralPickers(partial(ProductionScheduler, "auto"), world)
        return SharedPickers("auto", world, delay_s, link_s)

    times = arrivals(jobs, rate, Random(seed))  # noqa: S311 - runs must repeat
    return run(Scenario(pickers=pickers), jobs, times, seed, scheduler)


def run(
    scenario: Scenario,
    jobs: Workload,
    times: list[float],
    seed: int,
    make: Callable[[World], SimulatedScheduler],
) -> RunMetrics:
    """Run one simulation.

    Args:
        scenario: The fleet, and what is measured.
        jobs: The jobs.
        times: When they arrive, seconds, ascending.
        seed: What the scheduler draws with.
        make: Creates the scheduler.
    """
    fleet = [
        SimulatedReplica(scenario.engine, scenario.speed(each)) for each in range(scenario.replicas)
    ]
    world = World(
        scenario,
        Random(f"routing {seed}"),  # noqa: S311 - likewise
        fleet,
        jobs.block_tokens,
    )
    records = SimulatedFleet(scenario, fleet, make(world)).run(jobs.jobs, times)
    return measure(
        records,
        fleet,
        block_tokens=jobs.block_tokens,
        prefill_rate=scenario.engine.prefill_rate,
        span_s=times[-1],
        measured=scenario.measured(times),
    )


_TRACE: Final = Path(__file__).parent / "traces" / "conversation_trace.jsonl"


@cache
def _conversation(count: int) -> Workload:
    return read_trace(_TRACE).first(count)


TRAFFIC: Final[dict[str, tuple[float, Callable[[int, int], Workload]]]] = {
    "sessions, 14/s": (14.0, lambda count, seed: sessions(count, Random(seed))),  # noqa: S311 - runs must repeat
    "conversation, 3/s": (3.0, lambda count, _: _conversation(count)),
    "shared-prefix, 12/s": (12.0, lambda count, seed: shared_prefix(count, Random(seed))),  # noqa: S311 - likewise
}
"""Requests per second, and the jobs of a number and a seed."""
GROUPS: Final[dict[str, tuple[int, float | None, float]]] = {
    "two, 1 ms": (2, LATE_S, 0.001),
    "two, 20 ms": (2, LATE_S, 0.020),
    "four, 1 ms": (4, LATE_S, 0.001),
    "two that share nothing": (2, None, 0.0),
}
"""Pickers, seconds until their records are sent and read (``None`` = never), and of the link."""


def _means(
    drawn: list[Workload], rate: float, group: tuple[int, float | None, float]
) -> list[float]:
    return [simulate(jobs, rate, seed, *group).ttft_mean or 0.0 for seed, jobs in enumerate(drawn)]


def _hosts(requests: int, seeds: int) -> None:
    """Print the table of groups of pickers."""
    print(f"| traffic | one | {' | '.join(GROUPS)} |")
    print("|---" * (2 + len(GROUPS)) + "|")
    for name, (rate, jobs) in TRAFFIC.items():
        drawn = [jobs(requests, seed) for seed in range(seeds)]
        alone = _means(drawn, rate, (1, None, 0.0))
        cells = [f"{median(alone):.3f} s"]
        for group in GROUPS.values():
            means = _means(drawn, rate, group)
            ratios = [mean / one for mean, one in zip(means, alone, strict=True)]
            cells.append(f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def workload(args: argparse.Namespace, seed: int) -> Workload:
    """Return the jobs of a seed."""
    if args.trace is not None:
        return read_trace(args.trace).first(args.requests)
    return sessions(args.requests, Random(seed))  # noqa: S311 - runs must repeat


def main() -> None:
    """Parse the command line, run the simulations and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--delay", type=float, default=LATE_S, help="seconds")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--trace", type=Path, help="in place of the generated sessions")
    parser.add_argument("--rate", type=float, default=14.0, help="requests per second")
    parser.add_argument("--hosts", action="store_true", help="the table of groups of pickers")
    args = parser.parse_args()
    if args.hosts:
        _hosts(args.requests, args.seeds)
        return
    columns = ("ttft_mean", "ttft_p99", "e2e_p50", "e2e_p99", "hit_ratio", "spread_requests")
    table = Table(title=f"{args.requests} requests, {args.seeds} seeds, {args.rate:g}/s")
    table.add_column("pickers")
    for column in columns:
        table.add_column(column, justify="right")
    ways: dict[str, tuple[int, float | None]] = {
        "one": (1, None),
        f"{args.workers}, {args.delay * 1000:g} ms delay": (args.workers, args.delay),
        f"{args.workers}, independent": (args.workers, None),
    }
    table.add_column("ttft_mean to one", justify="right")
    alone: list[float] = []
    for name, (pickers, delay_s) in ways.items():
        runs = [
            simulate(
                workload(args, seed),
                args.rate,
                seed,
                pickers,
                delay_s,
            ).as_dict()
            for seed in range(args.seeds)
        ]
        medians = [median(run[column] or 0.0 for run in runs) for column in columns]
        means = [run["ttft_mean"] or 0.0 for run in runs]
        alone = alone or means
        ratios = sorted(mean / one for mean, one in zip(means, alone, strict=True))
        table.add_row(
            name,
            *(f"{each:.3f}" for each in medians),
            f"{median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
