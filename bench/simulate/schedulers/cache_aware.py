"""The ``cache_aware`` rule of the vllm and sglang routers, with their default options.

Rule (vllm-project/router and sgl-model-gateway, ``cache_aware``): if ``max - min > 64`` and
``max > 1.5 * min`` for requests in flight, the least loaded worker; otherwise the longest match in
a prefix tree of all workers, if it covers more than 0.3 of the prompt; otherwise the least loaded.
The prompt is inserted for the chosen worker.

Differences: the tree matches blocks instead of characters, and its limit of 67,108,864 characters
is enforced at each insert instead of every 120 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.simulate.schedulers.base import SimulatedChoice
from bench.simulate.schedulers.local import LocalScheduler, SeenBlocks

if TYPE_CHECKING:
    from bench.simulate.schedulers.base import World
    from bench.simulate.workload import Job

MATCH_SHARE: Final = 0.3
BALANCE_ABS: Final = 64
BALANCE_REL: Final = 1.5
TREE_TOKENS: Final = 67_108_864 // 4
"""Limit of the tree, tokens, at four characters per token."""


class CacheAware(LocalScheduler):
    """Longest match unless the fleet is imbalanced."""

    def __init__(self, world: World) -> None:
        scenario = world.scenario
        super().__init__(scenario.replicas, scenario.joiner, world.rng)
        self._tokens = world.block_tokens
        self._tree = SeenBlocks(scenario.replicas, TREE_TOKENS // world.block_tokens)

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:  # noqa: ARG002 - interface
        """Choose by balance, then by match, then by load."""
        members = self.own.candidates()
        if not members:
            return None
        loads = [self.own.requests[index] for index in members]
        order = self.ordered(list(zip(map(float, loads), members, strict=True)))
        matches = {index: self._tree.match(index, job.blocks) for index in members}
        if not (max(loads) - min(loads) > BALANCE_ABS and max(loads) > BALANCE_REL * min(loads)):
            best = self.ordered([(-float(matches[index]), index) for index in members])[0]
            if matches[best] * self._tokens > MATCH_SHARE * job.input_tokens:
                order = [best, *[index for index in order if index != best]]
        self._tree.insert(order[0], job.blocks)
        self.own.charge(job, order[0], job.input_tokens)
        return SimulatedChoice(order, matches[order[0]])

    def forget(self, replica: int) -> None:
        """Remove a restarted worker from the tree."""
        self._tree.forget(replica)
