"""Reference schedulers: an oracle with perfect knowledge, and a probe with a fixed price."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.simulate.schedulers.base import SimulatedChoice
from bench.simulate.schedulers.local import LocalScheduler, SeenBlocks

if TYPE_CHECKING:
    from bench.simulate.schedulers.base import World
    from bench.simulate.workload import Job


class Oracle(LocalScheduler):
    """Lowest TTFT of the job, with exact and current knowledge of every cache and queue.

    It is greedy and ignores the cost to other jobs, so it is not a bound. It learns of failed
    replicas with the same delay as the others.

    Args:
        world: The simulation.
        exact: Whether what is computed of an unfinished prompt is not waited for again. Without it
            the prompt in work counts as whole: then fewer jobs wait for a long prompt, which makes
            copies of what is shared earlier, and costs time where little is.
    """

    def __init__(self, world: World, *, exact: bool = False) -> None:
        super().__init__(world.scenario.replicas, world.scenario.joiner, world.rng)
        self._world = world
        self._exact = exact

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:
        """Choose the replica with the lowest TTFT."""
        fleet = self._world.fleet
        costs = [
            (
                fleet[index].first_token_s(job, now) if self._exact else fleet[index].wait_s(job),
                index,
            )
            for index in self.own.candidates()
        ]
        if not costs:
            return None
        order = self.ordered(costs)
        uncached = fleet[order[0]].foresee(job)
        self.own.charge(job, order[0], uncached)
        return SimulatedChoice(order, (job.input_tokens - uncached) // self._world.block_tokens)


MISS_WEIGHT: Final = 4.0
"""Cost to the rest of the fleet of a token that could have been cached elsewhere."""
IN_FLIGHT_S: Final = 0.04
"""Seconds of engine time per request in flight."""


class Probe(LocalScheduler):
    """A price from the scheduler's own dispatches and the replicas' true rates.

    ``drain + (1 + 4) * uncached / R + 0.04 * in_flight``, where ``drain`` is a virtual clock per
    replica (``busy_until = max(busy_until, now) + uncached / R`` on dispatch) and ``uncached``
    comes from an index of the sent blocks with the size of the replica's cache.
    """

    def __init__(self, world: World) -> None:
        scenario = world.scenario
        super().__init__(scenario.replicas, scenario.joiner, world.rng)
        self._block_tokens = world.block_tokens
        self._index = SeenBlocks(scenario.replicas, scenario.engine.cache_blocks)
        self._rates = [
            scenario.engine.prefill_rate * scenario.speed(index)
            for index in range(scenario.replicas)
        ]
        self._busy_until = [0.0] * scenario.replicas

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:
        """Choose the lowest price."""
        costs: list[tuple[float, int]] = []
        matches: dict[int, int] = {}
        for index in self.own.candidates():
            matches[index] = matched = self._index.match(index, job.blocks)
            seconds = (job.input_tokens - matched * self._block_tokens) / self._rates[index]
            drain = max(0.0, self._busy_until[index] - now)
            waiting = IN_FLIGHT_S * self.own.requests[index]
            costs.append((drain + (1.0 + MISS_WEIGHT) * seconds + waiting, index))
        if not costs:
            return None
        order = self.ordered(costs)
        pick = order[0]
        uncached = job.input_tokens - matches[pick] * self._block_tokens
        self._busy_until[pick] = max(self._busy_until[pick], now) + uncached / self._rates[pick]
        self._index.insert(pick, job.blocks)
        self.own.charge(job, pick, uncached)
        return SimulatedChoice(order, matches[pick])

    def forget(self, replica: int) -> None:
        """Drop the blocks and the clock of a restarted replica."""
        self._index.forget(replica)
        self._busy_until[replica] = 0.0
