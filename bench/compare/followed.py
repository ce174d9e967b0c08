"""The simulator's router on the choices of a fleet, and its policies on the same arrivals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from bench.simulate.fleet import SimulatedFleet
from bench.simulate.replica import SimulatedReplica
from bench.simulate.schedulers.base import World
from bench.simulate.schedulers.production import ProductionScheduler
from bench.simulate.schedulers.registry import make_scheduler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.simulate.scenario import Scenario
    from bench.simulate.schedulers.base import SimulatedChoice
    from bench.simulate.workload import Job

TIE_S: Final = 0.001
"""Difference of prices below which two replicas count as equal, seconds."""
CLOSE_S: Final = 0.05
"""Difference of prices that the times of two processes may cause, seconds."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A choice of the fleet by the prices of the simulator's router."""

    behind_s: float
    """Price of the fleet's choice above the cheapest, seconds; 0 = the same choice."""
    part: str
    """The part of the price in which the two differ most; empty if the choice is the same."""


class Follower(ProductionScheduler):
    """The picker's router on the choices of a fleet; it notes its own.

    Args:
        world: The simulation.
        choices: The fleet's replica of each job.
    """

    def __init__(self, world: World, choices: Mapping[int, int]) -> None:
        super().__init__("auto", world)
        self._theirs = choices
        self.compared: list[Compared] = []

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:
        """Send the job to the fleet's choice."""
        replica = self._theirs[job.index]
        self.compared.append(compare(self.explained(job, now)["candidates"], f"r{replica}"))
        return self.follow(job, replica, now)


def compare(candidates: Sequence[Mapping[str, Any]], picked: str) -> Compared:
    """Compare a choice with the cheapest candidate; candidates are sorted by price."""
    cheapest = candidates[0]
    theirs = next(each for each in candidates if each["id"] == picked)
    behind = float(theirs["behind"])
    if behind <= TIE_S:
        return Compared(0.0, "")
    parts = theirs["parts"]
    more = {name: parts[name] - cheapest["parts"].get(name, 0.0) for name in parts}
    return Compared(behind, max(more, key=more.__getitem__))


def summary(compared: Sequence[Compared]) -> dict[str, Any]:
    """Return the shares of equal and close choices, and the others by part of the price."""
    count = len(compared)
    other = Counter(each.part for each in compared if each.behind_s > CLOSE_S)
    return {
        "decisions": count,
        "equal": sum(each.behind_s <= TIE_S for each in compared) / count,
        "close": sum(each.behind_s <= CLOSE_S for each in compared) / count,
        "others": dict(other.most_common()),
        "behind_mean_s": sum(each.behind_s for each in compared) / count,
    }


def simulated(
    jobs: Sequence[Job],
    times: Sequence[float],
    policy: str,
    scenario: Scenario,
    choices: Mapping[int, int] | None = None,
    *,
    draw: int = 0,
) -> tuple[list[float | None], list[Compared]]:
    """Simulate the jobs; return times to the first token, and with ``choices`` the comparison.

    A time is ``None`` where the job was lost. ``draw`` seeds the choice among equal replicas.
    """
    if choices is not None:  # nothing waits: the fleet has sent each job
        scenario = replace(scenario, limit="none", hold_s=0.0)
    fleet = [SimulatedReplica(scenario.engine) for _ in range(scenario.replicas)]
    world = World(scenario, Random(draw), fleet, scenario.engine.block_tokens)  # noqa: S311 - repeatable
    scheduler = make_scheduler(policy, world) if choices is None else Follower(world, choices)
    records = SimulatedFleet(scenario, fleet, scheduler).run(jobs, times)
    compared = scheduler.compared if isinstance(scheduler, Follower) else []
    return [record.ttft_s for record in records], compared
