"""The rules of llm-d's router: its affinity filter, and its weighted scorers.

Filter (llm-d/llm-d-router, ``prefix-cache-affinity-filter``): keep the endpoints that cache at
least 0.80 of the prompt; without any, keep all; if the best of them would take over 18,000 ms
longer than the best other endpoint, keep all (a time is the tokens in flight divided by the peak
prefill throughput). Then ``token-load-scorer`` and ``max-score-picker``: the fewest uncached tokens
in flight, including this request.

The throughput is that of the simulated engine; the project asks users to measure it.

Scorers (``default-plugins.yaml`` and ``optimized-baseline-plugins.yaml`` of the chart): the highest
of ``2 * queue + 2 * kv + 3 * prefix``, in the optimised baseline plus ``2 * no-hit-lru``; equal
scores at random. Scores are within 0..1:

* ``queue``: ``(max - q) / (max - min)`` of the queued requests in telemetry, 1 if all are equal;
* ``kv``: 1 minus the used share of the KV cache in telemetry;
* ``prefix``: share of the prompt's blocks in an index of what was sent, 31,250 blocks of 64 tokens
  per endpoint (``lruCapacityPerServer``) unless telemetry gives the size of the cache;
* ``no-hit-lru``: for a prompt that no endpoint holds, the rank of the endpoints by their last such
  prompt, 1 for the least recent and 0 for the latest; otherwise 0.5.

Queue (gateway-api-inference-extension, ``utilizationdetector/detector.go`` of 275ac760, 2026, which
llm-d's router uses): a replica's saturation is ``max(queued / 5, kv / 0.8)``, the pool's is the
mean. From 1 on requests of a negative priority are refused (*sheddable*), all others go on. With
flow control (llm-d-router, feature gate) all requests wait while the pool is saturated, 5,000 at
most and for 60 s at most. Readings older than 200 ms count as 1; simulated ones are not.

The optimised baseline of later versions is the affinity filter. As in the router, the scorers read
telemetry every 50 ms (``refresh-metrics-interval``); its age shrinks in proportion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.simulate.schedulers.base import SimulatedChoice
from bench.simulate.schedulers.local import (
    GatedScheduler,
    LocalLoad,
    LocalScheduler,
    SeenBlocks,
)

if TYPE_CHECKING:
    from bench.simulate.schedulers.base import SimulatedSample, World
    from bench.simulate.workload import Job

AFFINITY: Final = 0.80
MAX_PENALTY_S: Final = 18.0
QUEUE: Final = 2.0
KV: Final = 2.0
PREFIX: Final = 3.0
NO_HIT: Final = 2.0
POLL_S: Final = 0.05
QUEUE_DEPTH: Final = 5.0
KV_USED: Final = 0.8
FLOW_MOST: Final = 5_000
FLOW_WAIT_S: Final = 60.0


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


class WeightedScorers(LocalScheduler):
    """The sum of weighted scores.

    Args:
        world: The simulation.
        no_hit: Weight of the ``no-hit-lru`` score; 0 = the chart's default.
    """

    poll_s = POLL_S

    def __init__(self, world: World, no_hit: float = 0.0) -> None:
        scenario = world.scenario
        super().__init__(scenario.replicas, scenario.joiner, world.rng)
        self._no_hit = no_hit
        self._index = SeenBlocks(scenario.replicas, scenario.engine.cache_blocks)
        self._queued = [0] * scenario.replicas
        self._kv_used = [0.0] * scenario.replicas
        self._cold: dict[int, None] = {}
        """Replicas by their last prompt that none held, least recent first."""

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:  # noqa: ARG002 - interface
        """Choose the highest score."""
        members = self.own.candidates()
        if not members:
            return None
        matches = {index: self._index.match(index, job.blocks) for index in members}
        queued = [self._queued[index] for index in members]
        most, least, blocks = max(queued), min(queued), len(job.blocks)
        cold = not any(matches.values())
        ranks = self._ranks(members) if cold else {}
        costs: list[tuple[float, int]] = []
        for index in members:
            free = 1.0 if most == least else (most - self._queued[index]) / (most - least)
            score = QUEUE * free + KV * (1.0 - self._kv_used[index])
            score += PREFIX * (matches[index] / blocks if blocks else 0.0)
            score += self._no_hit * (ranks[index] if cold else 0.5)
            costs.append((-score, index))
        order = self.ordered(costs)
        pick = order[0]
        if cold:
            self._cold.pop(pick, None)
            self._cold[pick] = None
        self._index.insert(pick, job.blocks)
        self.own.charge(job, pick, job.input_tokens)
        return SimulatedChoice(order, matches[pick])

    def _ranks(self, members: list[int]) -> dict[int, float]:
        never = [index for index in members if index not in self._cold]
        used = [index for index in self._cold if index in members]
        last = max(len(members) - 1, 1)
        ranks = dict.fromkeys(never, 1.0)
        for place, index in enumerate(used, len(never)):
            ranks[index] = 1.0 - place / last
        return ranks

    def observe(self, replica: int, sample: SimulatedSample, now: float) -> None:  # noqa: ARG002 - interface
        """Keep a replica's queue and KV cache."""
        self._queued[replica] = sample.queued
        self._kv_used[replica] = sample.kv_used

    def forget(self, replica: int) -> None:
        """Drop the blocks and the telemetry of a restarted replica."""
        self._index.forget(replica)
        self._queued[replica], self._kv_used[replica] = 0, 0.0
        self._cold.pop(replica, None)


class Saturation:
    """The gate of the utilization detector: it is open while the pool is not saturated.

    Args:
        world: The simulation.
    """

    def __init__(self, world: World) -> None:
        absent = world.scenario.joiner
        replicas = [each for each in range(world.scenario.replicas) if each != absent]
        self._scores = dict.fromkeys(replicas, 0.0)

    def opens(self, now: float) -> bool:  # noqa: ARG002 - interface
        """Return whether the mean of the replicas' saturation is below 1."""
        return sum(self._scores.values()) < len(self._scores)

    def ended(self, now: float) -> None:
        """Do nothing; it goes by telemetry alone."""

    def observe(self, replica: int, sample: SimulatedSample) -> None:
        """Take a replica's queue and KV cache."""
        self._scores[replica] = max(sample.queued / QUEUE_DEPTH, sample.kv_used / KV_USED)


def sheddable(world: World) -> GatedScheduler:
    """Return the chart's scorers, where all requests have a negative priority."""
    return GatedScheduler(WeightedScorers(world), Saturation(world), most=0, wait_s=0.0)


def flow_control(world: World) -> GatedScheduler:
    """Return the chart's scorers behind flow control with its defaults."""
    return GatedScheduler(
        WeightedScorers(world), Saturation(world), most=FLOW_MOST, wait_s=FLOW_WAIT_S
    )
