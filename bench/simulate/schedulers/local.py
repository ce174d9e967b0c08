"""Shared state of the re-implemented schedulers: their own dispatches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bench.simulate.schedulers.base import SimulatedChoice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from bench.simulate.schedulers.base import SimulatedSample, World
    from bench.simulate.workload import Job


class _Charge(NamedTuple):
    replica: int
    tokens: float


class LocalLoad:
    """Requests and prompt tokens in flight per replica, counted from the router's own dispatches.

    Each choice is charged once; the charge moves with a retry and is released once.

    Args:
        replicas: Number of replicas.
        absent: Index of a replica that joins later, or ``None``.
    """

    def __init__(self, replicas: int, absent: int | None) -> None:
        self.requests = [0] * replicas
        self.tokens = [0.0] * replicas
        """Prompt tokens in flight per replica."""
        self.present = [index != absent for index in range(replicas)]
        self._charges: dict[int, _Charge] = {}

    def candidates(self) -> list[int]:
        """Return the replicas that have joined and are not known to be dead."""
        return [index for index, present in enumerate(self.present) if present]

    def charge(self, job: Job, replica: int, tokens: float) -> None:
        """Charge a job to a replica."""
        self._charges[job.index] = _Charge(replica, tokens)
        self.requests[replica] += 1
        self.tokens[replica] += tokens

    def move(self, job: Job, replica: int) -> None:
        """Move the charge of a job to another replica."""
        self.charge(job, replica, self.settle(job))

    def settle(self, job: Job) -> float:
        """Release the charge of a job and return its tokens."""
        charge = self._charges.pop(job.index)
        self.requests[charge.replica] -= 1
        self.tokens[charge.replica] -= charge.tokens
        return charge.tokens

    def release(self, job: Job) -> None:
        """Release the charge of a job, if any."""
        if job.index in self._charges:
            self.settle(job)


class LocalScheduler:
    """Base class of schedulers that count their own dispatches; subclasses add ``choose``.

    Args:
        replicas: Number of replicas.
        absent: Index of a replica that joins later, or ``None``.
        rng: Random generator for ties and draws.
    """

    poll_s: float | None = None

    def __init__(self, replicas: int, absent: int | None, rng: Random) -> None:
        self.own = LocalLoad(replicas, absent)
        self.rng = rng

    def moved(self, job: Job, replica: int, now: float) -> None:  # noqa: ARG002 - interface
        """Move the charge to the fallback."""
        self.own.move(job, replica)

    def answering(self, job: Job, now: float) -> None:
        """Do nothing; schedulers that release work at the first token override this."""

    def settled(self, job: Job, now: float) -> None:  # noqa: ARG002 - interface
        """Release the charge."""
        self.own.settle(job)

    def observe(self, replica: int, sample: SimulatedSample, now: float) -> None:
        """Do nothing; schedulers that use telemetry override this."""

    def membership(self, replica: int, change: str, now: float) -> None:  # noqa: ARG002 - interface
        """Exclude a silent replica; include it again after its restart."""
        self.own.present[replica] = change != "silent"
        if change == "restarted":
            self.forget(replica)

    def forget(self, replica: int) -> None:
        """Drop the index entries of the replica; schedulers with an index override this."""

    def ordered(self, costs: Sequence[tuple[float, int]]) -> list[int]:
        """Return the three cheapest replicas, equal costs in random order."""
        drawn = sorted((cost, self.rng.random(), index) for cost, index in costs)
        return [index for _, _, index in drawn[:3]]


class FewestRequests(LocalScheduler):
    """Fewest requests in flight by its own dispatches: the picker's least-in-flight, cheaper."""

    def __init__(self, world: World) -> None:
        super().__init__(world.scenario.replicas, world.scenario.joiner, world.rng)

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:  # noqa: ARG002 - interface
        """Choose the fewest requests."""
        order = self.ordered([(self.own.requests[each], each) for each in self.own.candidates()])
        if not order:
            return None
        self.own.charge(job, order[0], job.input_tokens)
        return SimulatedChoice(order)


class SeenBlocks:
    """Index of the blocks sent to each replica, with LRU eviction.

    Args:
        replicas: Number of replicas.
        capacity: Maximum number of blocks per replica.
    """

    def __init__(self, replicas: int, capacity: int) -> None:
        self._capacity = capacity
        self._seen: list[dict[int, None]] = [{} for _ in range(replicas)]

    def match(self, replica: int, blocks: Sequence[int]) -> int:
        """Return the number of leading blocks in the index of the replica."""
        seen = self._seen[replica]
        depth = 0
        for block in blocks:
            if block not in seen:
                break
            depth += 1
        return depth

    def insert(self, replica: int, blocks: Sequence[int]) -> None:
        """Insert a prompt, leaf first, so that parents are evicted after their children."""
        seen = self._seen[replica]
        for block in reversed(blocks):
            seen.pop(block, None)
            seen[block] = None
        while len(seen) > self._capacity:
            del seen[next(iter(seen))]

    def held(self, replica: int) -> int:
        """Return the number of indexed blocks of a replica."""
        return len(self._seen[replica])

    def forget(self, replica: int) -> None:
        """Drop the blocks of a replica."""
        self._seen[replica].clear()
