"""What the re-implemented rules keep about their own dispatches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from bench.simulate.schedulers.base import SimulatedSample
    from bench.simulate.workload import Job


class _Charge(NamedTuple):
    replica: int
    tokens: float


class LocalLoad:
    """Requests and prompt tokens in flight per replica, as a router counts its own.

    Rule: a charge is made once per choice, moves with a retry and is given back once.

    Args:
        replicas: How many.
        absent: A replica that joins later.
    """

    def __init__(self, replicas: int, absent: int | None) -> None:
        self.requests = [0] * replicas
        self.tokens = [0.0] * replicas
        """Prompt tokens, as many as each charge named."""
        self.present = [index != absent for index in range(replicas)]
        self._charges: dict[int, _Charge] = {}

    def candidates(self) -> list[int]:
        """Return the replicas that are members and not known to be dead."""
        return [index for index, present in enumerate(self.present) if present]

    def charge(self, job: Job, replica: int, tokens: float) -> None:
        """Count a job as sent."""
        self._charges[job.index] = _Charge(replica, tokens)
        self.requests[replica] += 1
        self.tokens[replica] += tokens

    def move(self, job: Job, replica: int) -> None:
        """Count it on another replica."""
        self.charge(job, replica, self.settle(job))

    def settle(self, job: Job) -> float:
        """Give the charge back; return its tokens."""
        charge = self._charges.pop(job.index)
        self.requests[charge.replica] -= 1
        self.tokens[charge.replica] -= charge.tokens
        return charge.tokens

    def release(self, job: Job) -> None:
        """Give the charge back if it is still there."""
        if job.index in self._charges:
            self.settle(job)


class LocalScheduler:
    """A scheduler that counts its own dispatches; rules add their choice.

    Args:
        replicas: How many.
        absent: A replica that joins later.
        rng: For ties and draws.
    """

    def __init__(self, replicas: int, absent: int | None, rng: Random) -> None:
        self.own = LocalLoad(replicas, absent)
        self.rng = rng

    def moved(self, job: Job, replica: int, now: float) -> None:  # noqa: ARG002 - interface
        """Count the job on the fallback that took it."""
        self.own.move(job, replica)

    def answering(self, job: Job, now: float) -> None:
        """Ignore it; rules that release work at the first token override this."""

    def settled(self, job: Job, now: float) -> None:  # noqa: ARG002 - interface
        """Give the charge back."""
        self.own.settle(job)

    def observe(self, replica: int, sample: SimulatedSample, now: float) -> None:
        """Ignore it; rules that read telemetry override this."""

    def membership(self, replica: int, change: str, now: float) -> None:  # noqa: ARG002 - interface
        """Leave a silent replica out; take it back when it restarted."""
        self.own.present[replica] = change != "silent"
        if change == "restarted":
            self.forget(replica)

    def forget(self, replica: int) -> None:
        """Forget what the replica had cached; rules with an index override this."""

    def ordered(self, costs: Sequence[tuple[float, int]]) -> list[int]:
        """Return the three cheapest replicas, equal costs in random order."""
        drawn = sorted((cost, self.rng.random(), index) for cost, index in costs)
        return [index for _, _, index in drawn[:3]]


class SeenBlocks:
    """Which blocks a router has sent where: least recently used ones leave first.

    Args:
        replicas: How many.
        capacity: Blocks kept per replica.
    """

    def __init__(self, replicas: int, capacity: int) -> None:
        self._capacity = capacity
        self._seen: list[dict[int, None]] = [{} for _ in range(replicas)]

    def match(self, replica: int, blocks: Sequence[int]) -> int:
        """Return how many leading blocks were sent to the replica."""
        seen = self._seen[replica]
        depth = 0
        for block in blocks:
            if block not in seen:
                break
            depth += 1
        return depth

    def insert(self, replica: int, blocks: Sequence[int]) -> None:
        """Note a prompt, leaf first, so that parents leave after their children."""
        seen = self._seen[replica]
        for block in reversed(blocks):
            seen.pop(block, None)
            seen[block] = None
        while len(seen) > self._capacity:
            del seen[next(iter(seen))]

    def held(self, replica: int) -> int:
        """Return the blocks noted for a replica."""
        return len(self._seen[replica])

    def forget(self, replica: int) -> None:
        """Drop a replica's blocks."""
        self._seen[replica].clear()
