"""The prefix-cache rule of AIBrix (vllm-project/aibrix, ``prefix_cache.go``).

Rule: if the maximum of running requests exceeds the minimum by more than 8, the pod with the
fewest. Otherwise, of the pods with a prefix match, ordered by longest match and then fewest
requests, the first whose running requests are at most the mean plus one standard deviation of all
pods (divided by n - 1); without such a pod, the one with the fewest. Ties are shuffled.

Difference: matches count blocks of the trace instead of 128 characters.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Final

from bench.simulate.schedulers.base import SimulatedChoice
from bench.simulate.schedulers.local import LocalScheduler, SeenBlocks

if TYPE_CHECKING:
    from bench.simulate.schedulers.base import World
    from bench.simulate.workload import Job

IMBALANCE: Final = 8
SIGMAS: Final = 1.0


class PrefixCache(LocalScheduler):
    """Longest match among pods that are not overloaded."""

    def __init__(self, world: World) -> None:
        scenario = world.scenario
        super().__init__(scenario.replicas, scenario.joiner, world.rng)
        self._index = SeenBlocks(scenario.replicas, scenario.engine.cache_blocks)

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:  # noqa: ARG002 - interface
        """Choose by balance, then by match within the bound, then by load."""
        members = self.own.candidates()
        if not members:
            return None
        loads = {index: self.own.requests[index] for index in members}
        order = self.ordered([(float(load), index) for index, load in loads.items()])
        matches = {index: self._index.match(index, job.blocks) for index in members}
        if max(loads.values()) - min(loads.values()) <= IMBALANCE:
            bound = self._bound(list(loads.values()))
            fit = [
                (-matches[index], loads[index], self.rng.random(), index)
                for index in members
                if matches[index] and loads[index] <= bound
            ]
            if fit:
                best = min(fit)[-1]
                order = [best, *[index for index in order if index != best]]
        self._index.insert(order[0], job.blocks)
        self.own.charge(job, order[0], job.input_tokens)
        return SimulatedChoice(order[:3], matches[order[0]])

    def forget(self, replica: int) -> None:
        """Drop the blocks of a restarted pod."""
        self._index.forget(replica)

    @staticmethod
    def _bound(loads: list[int]) -> float:
        mean = sum(loads) / len(loads)
        if len(loads) == 1:
            return mean
        return mean + SIGMAS * sqrt(sum((load - mean) ** 2 for load in loads) / (len(loads) - 1))
