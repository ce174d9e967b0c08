"""Where `auto` differs from exact knowledge on the same past, and which of its inputs is wrong.

The greedy oracle with exact knowledge decides; the picker's router is asked for its prices at each
request and then told the oracle's choice, so that both have the same past at the next one. A choice
of the router *costs* the seconds by which the prompt's first token would be later than at the
oracle's choice. Of a choice that costs something, inputs of the price are replaced by the truth, in
the order of ``CAUSES``; the first that makes the choice good is its cause.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from bench.simulate.fleet import SimulatedFleet
from bench.simulate.replica import SimulatedReplica
from bench.simulate.schedulers.base import World
from bench.simulate.schedulers.oracle import Oracle
from bench.simulate.schedulers.production import ProductionScheduler
from bench.simulate.workload import arrivals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.simulate.fleet import Record
    from bench.simulate.scenario import Scenario
    from bench.simulate.schedulers.base import SimulatedChoice, SimulatedScheduler
    from bench.simulate.workload import Job, Workload

CHEAP_S: Final = 0.005
"""A choice that costs less is as good as the oracle's, seconds; also a tenth of the best time."""
CAUSES: Final = ("cache", "wait", "both", "policy")
"""Its belief about caches, its waits, both; else the price itself, with the truth in it."""


@dataclass
class Costs:
    """What the choices of the router cost in all, seconds."""

    requests: int = 0
    best_s: float = 0.0
    """Sum of the times to the first token at the oracle's choices."""
    by_cause: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    first: dict[str, Any] | None = None
    """The first choice that costs something."""
    dearest: dict[str, Any] | None = None
    """The one that costs most."""

    def cells(self) -> str:
        """Return the cells of a table: shares in the sum of the best times, and two choices."""
        best = max(self.best_s, 1e-9)
        shares = (f"{self.by_cause[cause] / best:.1%}" for cause in CAUSES)
        return " | ".join((*shares, _said(self.first), _said(self.dearest)))


def _said(choice: Mapping[str, Any] | None) -> str:
    """Return a choice in short: when, what it cost, and the price's terms beside the truth."""
    if choice is None:
        return "-"
    picked, best = choice["picked"], choice["best"]
    terms = ", ".join(
        f"{name} {each['drain_s']:.2g} + {each['own_s']:.2g} s for {each['true_s']:.2g}"
        for name, each in (("picked", picked), ("best", best))
    )
    return f"{choice['at']:.0f} s, {choice['cause']}, {choice['cost_s']:.2g} s: {terms}"


class Asked(ProductionScheduler):
    """The picker's router, which is asked and then told what the oracle chose."""

    def __init__(self, world: World) -> None:
        super().__init__("auto", world)
        self._oracle = Oracle(world, exact=True)
        self._fleet = world.fleet
        self._engine = world.scenario.engine
        self.costs = Costs()

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:
        """Ask the router, then follow the oracle."""
        asked = self.explained(job, now)
        choice = self._oracle.choose(job, now)
        if choice is None:
            return None
        self._judge(job, asked["candidates"], choice.replicas[0], now)
        self.follow(job, choice.replicas[0], now)
        return choice

    def _judge(
        self, job: Job, candidates: Sequence[Mapping[str, Any]], best: int, now: float
    ) -> None:
        costs = self.costs
        costs.requests += 1
        true = {
            int(each["id"][1:]): self._fleet[int(each["id"][1:])].first_token_s(job, now)
            for each in candidates
        }
        least = min(true.values())
        costs.best_s += least
        picked = int(candidates[0]["id"][1:])
        dear = max(CHEAP_S, 0.1 * least)
        cost = true[picked] - least
        if cost <= dear:
            return
        cause = self._cause(job, candidates, true, least + dear)
        costs.by_cause[cause] += cost
        told = {
            "job": job.index,
            "at": round(now, 2),
            "cause": cause,
            "cost_s": round(cost, 4),
            "tokens": job.input_tokens,
            "learned": self.told(),
            "picked": self._shown(job, candidates[0], true[picked]),
            "best": next(
                self._shown(job, each, true[best])
                for each in candidates
                if each["id"] == f"r{best}"
            ),
        }
        if costs.first is None:
            costs.first = told
        if costs.dearest is None or cost > costs.dearest["cost_s"]:
            costs.dearest = told

    def told(self) -> dict[str, float]:
        """Return what the router has learned."""
        return {
            "tokens_per_s": round(self.tokens_per_s()),
            "bytes_per_token": round(self._router.scales.of("simulated"), 3),
        }

    def _shown(self, job: Job, candidate: Mapping[str, Any], true_s: float) -> dict[str, Any]:
        replica = self._fleet[int(candidate["id"][1:])]
        return {
            "replica": candidate["id"],
            "true_s": round(true_s, 4),
            "true_uncached": replica.foresee(job),
            "running": replica.running,
            "queued": replica.queued,
            "kv_used": round(replica.kv_used, 2),
            "price": candidate["price"],
            **candidate["parts"],
        }

    def _cause(
        self,
        job: Job,
        candidates: Sequence[Mapping[str, Any]],
        true: Mapping[int, float],
        good: float,
    ) -> str:
        for cause in CAUSES[:-1]:
            prices = {}
            for each in candidates:
                index, parts = int(each["id"][1:]), dict(each["parts"])
                own = self._fleet[index].foresee(job) / self._engine.prefill_rate
                if cause != "wait":
                    believed = max(parts["own_s"], 1e-9)
                    parts["cost_to_others_s"] *= own / believed
                    parts["own_s"] = own
                if cause != "cache":
                    parts["drain_s"] = true[index] - own
                prices[index] = sum(parts.values())
            if true[min(prices, key=prices.__getitem__)] <= good:
                return cause
        return CAUSES[-1]


def simulated(
    jobs: Workload,
    scenario: Scenario,
    make: Callable[[World], SimulatedScheduler],
    seed: int,
    rate: float,
) -> list[Record]:
    """Simulate a run; return its records, in order of arrival.

    Args:
        jobs: The jobs.
        scenario: The fleet.
        make: Makes the scheduler.
        seed: Seed of arrivals and draws.
        rate: Arrivals per second.
    """
    times = arrivals(jobs, rate, Random(seed))  # noqa: S311 - repeatable
    fleet = [
        SimulatedReplica(scenario.engine, scenario.speed(index))
        for index in range(scenario.replicas)
    ]
    chance = Random(f"routing {seed}")  # noqa: S311 - independent of the arrivals
    scheduler = make(World(scenario, chance, fleet, jobs.block_tokens))
    return SimulatedFleet(scenario, fleet, scheduler).run(jobs.jobs, times)


def beside(jobs: Workload, scenario: Scenario, seed: int, rate: float) -> Costs:
    """Run the oracle on a fleet, without limits, with the router asked beside it."""
    asked: list[Asked] = []
    scenario = replace(scenario, limit="none", hold_s=0.0)

    def make(world: World) -> Asked:
        asked.append(Asked(world))
        return asked[0]

    simulated(jobs, scenario, make, seed, rate)
    return asked[0].costs
