"""The ``least_load`` rule of SMG (sgl-model-gateway, ``least_load.rs``): tokens over throughput.

Rule: lowest ``(queued_uncached_tokens + u) / throughput + 0.15 s * k / (1 - k)``, where ``u`` is
the router's own prompt tokens since the last poll (every 10 s), ``k`` is the polled KV usage (at
most 0.999), and throughput is 2,000 tokens/s if unknown. Ties go to the lowest index. Before the
first poll, the score is the router's own requests times 1,024 tokens.

Queue (lightseekorg/smg, ``docs/concepts/reliability/rate-limiting.md`` of 47fb5730; the same in
``middleware.rs`` of sglang's gateway, 0317c97a): a token bucket of ``--max-concurrent-requests``,
which is filled at as many tokens a second unless told otherwise, and gets a token back when an
answer ends. Without a token a request waits, 100 at most and for 60 s at most. By default it is
off; the page advises 16 to 32 per replica for large GPUs, here the engine's slots. The gateway's
default policy, ``cache_aware``, chooses the replica.

Difference: throughput is always the default, so the KV term has a quarter of the weight that it
would have with the engine's true prefill rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.simulate.schedulers.base import SimulatedChoice
from bench.simulate.schedulers.cache_aware import CacheAware
from bench.simulate.schedulers.local import GatedScheduler, LocalScheduler

if TYPE_CHECKING:
    from bench.simulate.schedulers.base import SimulatedSample, World
    from bench.simulate.workload import Job

BARRIER_S: Final = 0.15
THROUGHPUT: Final = 2_000.0
MEAN_PREFILL: Final = 1_024.0
POLL_S: Final = 10.0
MAX_KV: Final = 0.999
QUEUE_SIZE: Final = 100
QUEUE_WAIT_S: Final = 60.0


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


class TokenBucket:
    """The gate of the rate limiter: it is open while there is a token.

    Args:
        size: Most tokens.
        per_s: Tokens that are added in a second.
    """

    def __init__(self, size: float, per_s: float) -> None:
        self._size = self._tokens = size
        self._per_s = per_s
        self._at = 0.0

    def opens(self, now: float) -> bool:
        """Take a token, if there is one."""
        self._tokens = min(self._size, self._tokens + (now - self._at) * self._per_s)
        self._at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def ended(self, now: float) -> None:  # noqa: ARG002 - interface
        """Put the token back."""
        self._tokens = min(self._size, self._tokens + 1.0)

    def observe(self, replica: int, sample: SimulatedSample) -> None:
        """Do nothing; it knows no telemetry."""


def queued(world: World) -> GatedScheduler:
    """Return the default policy behind a bucket of as many tokens as the fleet has slots."""
    slots = float(world.scenario.replicas * world.scenario.engine.max_running)
    gate = TokenBucket(slots, slots)
    return GatedScheduler(CacheAware(world), gate, most=QUEUE_SIZE, wait_s=QUEUE_WAIT_S)
