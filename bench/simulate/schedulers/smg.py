"""The ``least_load`` rule of SMG (sgl-model-gateway, ``least_load.rs``): tokens over throughput.

Rule: lowest ``(queued_uncached_tokens + u) / throughput + 0.15 s * k / (1 - k)``, where ``u`` is
the router's own prompt tokens since the last poll (every 10 s), ``k`` is the polled KV usage (at
most 0.999), and throughput is 2,000 tokens/s if unknown. Ties go to the lowest index. Before the
first poll, the score is the router's own requests times 1,024 tokens.

Difference: throughput is always the default, so the KV term has a quarter of the weight that it
would have with the engine's true prefill rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.simulate.schedulers.base import SimulatedChoice
from bench.simulate.schedulers.local import LocalScheduler

if TYPE_CHECKING:
    from bench.simulate.schedulers.base import SimulatedSample, World
    from bench.simulate.workload import Job

BARRIER_S: Final = 0.15
THROUGHPUT: Final = 2_000.0
MEAN_PREFILL: Final = 1_024.0
POLL_S: Final = 10.0
MAX_KV: Final = 0.999


class LeastLoad(LocalScheduler):
    """Shortest drain time; the router's own dispatches are added between polls."""

    def __init__(self, world: World) -> None:
        replicas = world.scenario.replicas
        super().__init__(replicas, world.scenario.joiner, world.rng)
        self._polled: list[SimulatedSample | None] = [None] * replicas
        self._since = [0.0] * replicas

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:  # noqa: ARG002 - interface
        """Choose the lowest score; ties go to the lowest index."""
        costs: list[tuple[float, int]] = []
        for index in self.own.candidates():
            sample = self._polled[index]
            if sample is None:
                cost = self.own.requests[index] * MEAN_PREFILL / THROUGHPUT
            else:
                used = min(sample.kv_used, MAX_KV)
                cost = (sample.queued_tokens + self._since[index]) / THROUGHPUT
                cost += BARRIER_S * used / (1.0 - used)
            costs.append((cost, index))
        if not costs:
            return None
        order = [index for _, index in sorted(costs)[:3]]
        self._since[order[0]] += job.input_tokens
        self.own.charge(job, order[0], job.input_tokens)
        return SimulatedChoice(order)

    def observe(self, replica: int, sample: SimulatedSample, now: float) -> None:  # noqa: ARG002 - interface
        """Use a sample as a poll if the previous poll is one interval old."""
        last = self._polled[replica]
        if last is None or sample.at - last.at >= POLL_S:
            self._polled[replica] = sample
            self._since[replica] = 0.0

    def forget(self, replica: int) -> None:
        """Drop the last poll of a restarted replica."""
        self._polled[replica] = None
        self._since[replica] = 0.0
