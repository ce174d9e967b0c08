"""Consistent hashing with bounded loads, as implemented by KubeAI.

Rule (KubeAI ``PrefixHash``): 256 points per endpoint on a ring; the key is the hash of the first
100 characters; from the key clockwise, the first endpoint with ``load <= 1.25 * (total + 1) / n``
(bound: Mirrokni, Thorup, Zadimoghaddam 2016). If all prompts have the same start, there is only
one key; the variant ``chwbl-depth2`` therefore hashes the first two blocks.

Difference: the key is the hash of the first block, because a trace has no characters.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from xxhash import xxh64_intdigest

from bench.simulate.schedulers.base import SimulatedChoice
from bench.simulate.schedulers.local import LocalScheduler

if TYPE_CHECKING:
    from bench.simulate.schedulers.base import World
    from bench.simulate.workload import Job

POINTS: Final = 256
LOAD_FACTOR: Final = 1.25


class BoundedHash(LocalScheduler):
    """Hash ring with a load bound.

    Args:
        world: The simulation.
        depth: Number of leading blocks in the key.
    """

    def __init__(self, world: World, depth: int = 1) -> None:
        replicas = world.scenario.replicas
        super().__init__(replicas, world.scenario.joiner, world.rng)
        self._depth = depth
        self._ring = sorted(
            (xxh64_intdigest(f"replica {index} point {point}"), index)
            for index in range(replicas)
            for point in range(POINTS)
        )

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:  # noqa: ARG002 - interface
        """Walk the ring clockwise from the key."""
        members = set(self.own.candidates())
        if not members:
            return None
        root = job.blocks[: self._depth]
        key = xxh64_intdigest(repr(root or ("short", job.index)))
        bound = LOAD_FACTOR * (sum(self.own.requests) + 1) / len(members)
        order: list[int] = []
        over: list[int] = []
        start = bisect_left(self._ring, (key, -1))
        for step in range(len(self._ring)):
            index = self._ring[(start + step) % len(self._ring)][1]
            if index in members:
                members.discard(index)
                (order if self.own.requests[index] <= bound else over).append(index)
                if len(order) == 3 or not members:
                    break
        order += over
        self.own.charge(job, order[0], job.input_tokens)
        return SimulatedChoice(order[:3])
