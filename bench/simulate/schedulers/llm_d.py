"""The affinity filter of llm-d's router with its recommended load scorer.

Rule (llm-d/llm-d-router, ``prefix-cache-affinity-filter``): keep the endpoints that cache at least
0.80 of the prompt; without any, keep all; if the best of them would take over 18,000 ms longer
than the best other endpoint, keep all (a time is the tokens in flight divided by the peak prefill
throughput). Then ``token-load-scorer`` and ``max-score-picker``: the fewest uncached tokens in
flight, including this request.

The throughput is that of the simulated engine; the project asks users to measure it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.simulate.schedulers.base import SimulatedChoice
from bench.simulate.schedulers.local import LocalLoad, LocalScheduler, SeenBlocks

if TYPE_CHECKING:
    from bench.simulate.schedulers.base import World
    from bench.simulate.workload import Job

AFFINITY: Final = 0.80
MAX_PENALTY_S: Final = 18.0


class AffinityFilter(LocalScheduler):
    """Cache affinity until saturation."""

    def __init__(self, world: World) -> None:
        scenario = world.scenario
        super().__init__(scenario.replicas, scenario.joiner, world.rng)
        self._tokens = world.block_tokens
        self._rate = scenario.engine.prefill_rate
        self._index = SeenBlocks(scenario.replicas, scenario.engine.cache_blocks)
        self._prefill = LocalLoad(scenario.replicas, scenario.joiner)

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:  # noqa: ARG002 - interface
        """Filter by match, then choose the lowest token load."""
        members = self.own.candidates()
        if not members:
            return None
        matches = {index: self._index.match(index, job.blocks) for index in members}
        in_flight = self._prefill.tokens
        enough = AFFINITY * len(job.blocks)
        kept = [index for index in members if job.blocks and matches[index] >= enough]
        others = [index for index in members if index not in kept]
        if not kept or (
            others
            and min(in_flight[each] for each in kept) - min(in_flight[each] for each in others)
            > MAX_PENALTY_S * self._rate
        ):
            kept = members
        loads = [
            (in_flight[index] + job.input_tokens - matches[index] * self._tokens, index)
            for index in kept
        ]
        order = self.ordered(loads)
        uncached = job.input_tokens - matches[order[0]] * self._tokens
        self._index.insert(order[0], job.blocks)
        self._prefill.charge(job, order[0], uncached)
        self.own.charge(job, order[0], uncached)
        return SimulatedChoice(order, matches[order[0]])

    def moved(self, job: Job, replica: int, now: float) -> None:
        """Move both charges."""
        super().moved(job, replica, now)
        self._prefill.move(job, replica)

    def answering(self, job: Job, now: float) -> None:  # noqa: ARG002 - interface
        """Release the tokens of the prompt."""
        self._prefill.release(job)

    def settled(self, job: Job, now: float) -> None:
        """Release all charges."""
        super().settled(job, now)
        self._prefill.release(job)

    def forget(self, replica: int) -> None:
        """Drop the blocks of a restarted endpoint."""
        self._index.forget(replica)
