"""What the price of a hop does to the time to the first token, in simulated time.

    python -m bench.simulate.suite.zones [--requests 2000] [--seeds 4]

Eight simulated replicas in two zones of four. All requests come in one zone, at a share of what its
four replicas can serve (measured first, by jobs that come all at once), and the other zone is a hop
away. The router of the picker, policy ``auto``, with the hop's price, with ``prefer_zone`` as it
was (a bound on the requests in flight, ``spill_factor`` times the mean), and without a preference.
Prints a table in Markdown: the mean TTFT with the price, and its ratio to that of the other two,
the median of seeds and their extremes. All variants of a seed have the same arrivals.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Final

from bench.simulate.fleet import SimulatedFleet
from bench.simulate.generators import sessions, shared_prefix
from bench.simulate.measure import measure
from bench.simulate.replica import SimulatedReplica
from bench.simulate.scenario import Scenario
from bench.simulate.schedulers.base import World
from bench.simulate.schedulers.production import POOL, ProductionScheduler
from bench.simulate.workload import arrivals
from ext_proc.routing.policies.auto import Auto

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.simulate.workload import Workload
    from ext_proc.routing.values.pool import Pool

TRAFFIC: Final[dict[str, Callable[[int, int], Workload]]] = {
    "sessions": lambda count, seed: sessions(count, Random(seed)),  # noqa: S311 - runs must repeat
    "shared-prefix": lambda count, seed: shared_prefix(count, Random(seed)),  # noqa: S311 - likewise
}
HOPS_S: Final = (0.0005, 0.02, 0.2)
LOADS: Final = (0.5, 0.8, 1.0, 1.2)
WAYS: Final = ("price", "factor", "none")
ZONE: Final = 4
"""Replicas of a zone."""
AT_ONCE: Final = 1000.0
"""Requests per second that no zone can serve."""


class Bounded(Auto):
    """``auto`` as a policy whose prices are not known to be seconds: the zone is a preference."""

    in_seconds = False


class ZonedScheduler(ProductionScheduler):
    """The picker's router in the first of two zones.

    Args:
        way: One of ``WAYS``.
        world: The simulation.
    """

    def __init__(self, way: str, world: World) -> None:
        self._way = way
        super().__init__("auto", world)
        router, hop = self._router, world.scenario.zone_hop_s
        router.hops.zone = "a"
        router.hops.measured({("a", ""): 0.0, ("b", ""): hop}, 0.0)
        if way == "factor":
            router._scheduler.policies = {POOL: {"auto": Bounded()}}  # noqa: SLF001 - in place of the pool's own

    def _pool(self) -> Pool:
        pool, scenario = super()._pool(), self._world.scenario
        endpoints = tuple(
            replace(each, zone="b" if scenario.hop_s(index) else "a")
            for index, each in enumerate(pool.endpoints)
        )
        return replace(pool, endpoints=endpoints, prefer_zone=self._way != "none")


def ttft(jobs: Workload, rate: float, seed: int, way: str, scenario: Scenario) -> float:
    """Return the mean TTFT of one simulation, seconds."""
    times = arrivals(jobs, rate, Random(seed))  # noqa: S311 - runs must repeat
    fleet = [
        SimulatedReplica(scenario.engine, scenario.speed(each)) for each in range(scenario.replicas)
    ]
    world = World(scenario, Random(f"routing {seed}"), fleet, jobs.block_tokens)  # noqa: S311 - likewise
    records = SimulatedFleet(scenario, fleet, ZonedScheduler(way, world)).run(jobs.jobs, times)
    metrics = measure(
        records,
        fleet,
        block_tokens=jobs.block_tokens,
        prefill_rate=scenario.engine.prefill_rate,
        span_s=times[-1],
        measured=scenario.measured(times),
    )
    return metrics.ttft_mean or 0.0


def capacity(jobs: Workload) -> float:
    """Return how many of these jobs one zone serves per second when all come at once."""
    scenario = Scenario(replicas=ZONE)
    times = arrivals(jobs, AT_ONCE, Random(0))  # noqa: S311 - runs must repeat
    fleet = [SimulatedReplica(scenario.engine, 1.0) for _ in range(ZONE)]
    world = World(scenario, Random(0), fleet, jobs.block_tokens)  # noqa: S311 - likewise
    scheduler = ProductionScheduler("auto", world)
    records = SimulatedFleet(scenario, fleet, scheduler).run(jobs.jobs, times)
    ends = [
        at + each.e2e_s for at, each in zip(times, records, strict=True) if each.e2e_s is not None
    ]
    return len(ends) / max(ends)


def _ratio(ours: list[float], others: list[float]) -> str:
    ratios = [mine / other for mine, other in zip(ours, others, strict=True)]
    return f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def main() -> None:
    """Parse the command line, run the simulations and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=4)
    args = parser.parse_args()
    print("| traffic | hop, ms | load | with the price | to `spill_factor` | to no preference |")
    print("|---|---|---|---|---|---|")
    for name, jobs in TRAFFIC.items():
        drawn = [jobs(args.requests, seed) for seed in range(args.seeds)]
        full = median(capacity(each) for each in drawn)
        for hop in HOPS_S:
            scenario = Scenario(replicas=2 * ZONE, zone_hop_s=hop)
            for load in LOADS:
                price, factor, none = (
                    [
                        ttft(each, load * full, seed, way, scenario)
                        for seed, each in enumerate(drawn)
                    ]
                    for way in WAYS
                )
                print(
                    f"| {name}, {load * full:.1f}/s | {hop * 1000:g} | {load:g} "
                    f"| {median(price):.3f} s | {_ratio(price, factor)} | {_ratio(price, none)} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
