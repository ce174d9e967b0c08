"""The cost of Dynamo's KV router (ai-dynamo/dynamo, ``lib/kv-router``) at temperature 0.

Rule: lowest ``1.0 * prefill + decode`` in blocks. ``prefill`` is the blocks in prefill plus those
of the request, minus the blocks that the worker caches; ``decode`` is the blocks of all its
requests. Prefill blocks are released at the first token, the others at the end. Ties go to the
worker with the smaller tree, then to a random one.

Difference: the rule reads the caches directly, without the delay of cache events; this favours it
slightly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.simulate.schedulers.base import SimulatedChoice
from bench.simulate.schedulers.local import LocalLoad, LocalScheduler

if TYPE_CHECKING:
    from bench.simulate.schedulers.base import World
    from bench.simulate.workload import Job

OVERLAP_WEIGHT: Final = 1.0


class Dynamo(LocalScheduler):
    """Lowest cost in blocks of prefill and decode."""

    def __init__(self, world: World) -> None:
        scenario = world.scenario
        super().__init__(scenario.replicas, scenario.joiner, world.rng)
        self._world = world
        self._prefill = LocalLoad(scenario.replicas, scenario.joiner)

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:  # noqa: ARG002 - interface
        """Choose the lowest cost."""
        size = self._world.block_tokens
        incoming = job.input_tokens / size
        costs: list[tuple[float, int, float, int]] = []
        matches: dict[int, int] = {}
        for index in self.own.candidates():
            cache = self._world.fleet[index].cache
            matches[index] = matched = cache.match(job.blocks)
            prefill = max(self._prefill.tokens[index] + incoming - matched, 0.0)
            cost = OVERLAP_WEIGHT * prefill + self.own.tokens[index]
            costs.append((cost, cache.held, self.rng.random(), index))
        if not costs:
            return None
        order = [entry[-1] for entry in sorted(costs)[:3]]
        self._prefill.charge(job, order[0], max(incoming - matches[order[0]], 0.0))
        self.own.charge(job, order[0], incoming)
        return SimulatedChoice(order, matches[order[0]])

    def moved(self, job: Job, replica: int, now: float) -> None:
        """Move both charges."""
        super().moved(job, replica, now)
        self._prefill.move(job, replica)

    def answering(self, job: Job, now: float) -> None:  # noqa: ARG002 - interface
        """Release the prefill charge."""
        self._prefill.release(job)

    def settled(self, job: Job, now: float) -> None:
        """Release both charges."""
        super().settled(job, now)
        self._prefill.release(job)
