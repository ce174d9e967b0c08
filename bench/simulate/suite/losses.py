"""The minute after a picker of a group is lost, and while all restart in turn, in simulated time.

    python -m bench.simulate.suite.losses [--requests 3000] [--seeds 8]

Two pickers with a link of 1 ms replicate to each other, as in ``bench.workers_quality``. In the
middle of a run one is killed for good; or each in turn is killed and is back ``DOWN_S`` later with
what the other one tells it. What a killed picker had in flight is known to no other: its requests
go on. Prints a table in Markdown: the mean TTFT and the fraction of cached tokens of what arrives
within a minute from the first kill, as ratios to the same run without it: the median of seeds and
their extremes.
"""

from __future__ import annotations

import argparse
from collections import deque
from dataclasses import replace
from functools import partial
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Final, cast

from bench.simulate.scenario import Scenario
from bench.simulate.schedulers.production import ProductionScheduler
from bench.simulate.workload import arrivals
from bench.workers_quality import LATE_S, TRAFFIC, SharedPickers, run
from ext_proc.workers.account import Account

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.simulate.measure import RunMetrics
    from bench.simulate.schedulers.base import SimulatedChoice, World
    from bench.simulate.workload import Job, Workload
    from ext_proc.routing.peers import ReplicationEvent
    from ext_proc.workers.account import LocalEvent

LINK_S: Final = 0.001
DOWN_S: Final = 10.0
"""Time from the end of a picker to its successor's first request, seconds."""
TURN_S: Final = 20.0
"""Time from the end of a picker to the end of the next one, seconds."""
MEASURED_S: Final = 60.0

Turn = tuple[float, int, bool]
"""When, of which picker, and whether it starts (or ends)."""
LOSSES: Final[dict[str, tuple[Turn, ...]]] = {
    "one is lost": ((0.0, 0, False),),
    "all restart in turn": (
        (0.0, 0, False),
        (DOWN_S, 0, True),
        (TURN_S, 1, False),
        (TURN_S + DOWN_S, 1, True),
    ),
}
"""Seconds count from the middle of the run."""


class MortalPickers(SharedPickers):
    """Pickers that replicate to each other, and end and start.

    Args:
        world: The simulation.
        turns: What happens, in the order of time.
    """

    def __init__(self, world: World, turns: Iterable[Turn]) -> None:
        self._dead: set[int] = set()
        super().__init__("auto", world, LATE_S, LINK_S)
        self._world = world
        self._turns = deque(turns)

    def _tell(self, number: int, event: LocalEvent) -> None:
        if number not in self._dead:
            super()._tell(number, event)

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:
        """Let what is due happen, then let a random living picker choose."""
        self._arrive(now)
        while self._turns and self._turns[0][0] <= now:
            _, number, starts = self._turns.popleft()
            if starts:
                self._start(number, now)
            else:
                self._kill(number)
        living = [each for n, each in enumerate(self._schedulers) if n not in self._dead]
        scheduler = self._rng.choice(living)
        choice = scheduler.choose(job, now)
        if choice is not None:
            self._of[job.index] = scheduler
        return choice

    def _kill(self, number: int) -> None:
        self._dead.add(number)
        self._batches[number].clear()
        self._under_way = deque(each for each in self._under_way if each[1] != number)
        for other, router in enumerate(self._routers):
            if other not in self._dead:
                router.peers.lost(number)

    def _start(self, number: int, now: float) -> None:
        rng = Random(self._rng.getrandbits(64))  # noqa: S311 - runs must repeat
        world = replace(self._world, rng=rng)
        scheduler = ProductionScheduler("auto", world)
        router, account = scheduler._router, Account()  # noqa: SLF001 - as the bus does
        peers = [n for n in range(len(self._routers)) if n != number and n not in self._dead]
        for peer in peers:
            known = self._routers[peer].peers
            told = (*self._accounts[peer].standing(), *known.index_uses())
            for message in told:
                router.peers.follow(peer, cast("ReplicationEvent", message), now)
        self._schedulers[number], self._routers[number] = scheduler, router
        self._accounts[number], self._batches[number] = account, []
        self._dead.discard(number)
        for part in (router.ledger, router.trials):
            part.on_event = partial(self._tell, number)
        router._on_event = partial(self._tell, number)  # noqa: SLF001 - likewise


def simulate(jobs: Workload, rate: float, seed: int, turns: tuple[Turn, ...]) -> RunMetrics:
    """Run one simulation; return what is measured in the minute after its middle."""
    times = arrivals(jobs, rate, Random(seed))  # noqa: S311 - runs must repeat
    middle = times[-1] / 2
    scenario = Scenario(pickers=2, window_s=(middle, middle + MEASURED_S))
    due = [(middle + at, number, starts) for at, number, starts in turns]
    return run(scenario, jobs, times, seed, partial(MortalPickers, turns=due))


def _cell(ratios: list[float]) -> str:
    return f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def main() -> None:
    """Parse the command line, run the simulations and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=8)
    args = parser.parse_args()
    columns = [f"{name}: {what}" for name in LOSSES for what in ("TTFT", "cached")]
    print(f"| traffic | {' | '.join(columns)} |")
    print("|---" * (1 + len(columns)) + "|")
    for name, (rate, jobs) in TRAFFIC.items():
        drawn = [jobs(args.requests, seed) for seed in range(args.seeds)]
        whole = [simulate(each, rate, seed, ()) for seed, each in enumerate(drawn)]
        cells = []
        for turns in LOSSES.values():
            runs = [simulate(each, rate, seed, turns) for seed, each in enumerate(drawn)]
            pairs = list(zip(runs, whole, strict=True))
            cells.append(_cell([(a.ttft_mean or 0) / (b.ttft_mean or 1) for a, b in pairs]))
            cells.append(_cell([a.hit_ratio / b.hit_ratio for a, b in pairs]))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
