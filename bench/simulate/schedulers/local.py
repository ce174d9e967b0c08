"""Shared parts of the re-implemented schedulers: their own dispatches, and queues before them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bench.simulate.schedulers.base import SimulatedChoice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from bench.simulate.schedulers.base import SimulatedSample, SimulatedScheduler, World
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


class Gate(Protocol):
    """When a router lets a further job go."""

    def opens(self, now: float) -> bool:
        """Return whether a job may go now; it goes then."""
        ...

    def ended(self, now: float) -> None:
        """Handle the end of a job that went."""
        ...

    def observe(self, replica: int, sample: SimulatedSample) -> None:
        """Handle the telemetry of a replica."""
        ...


class GatedScheduler:
    """A scheduler whose jobs wait until a gate opens, first in first out, before it chooses.

    Args:
        chooser: Chooses the replica of a job when it goes.
        gate: Says when it may.
        most: Jobs that wait at most; further ones are shed.
        wait_s: Longest wait, seconds; then a job is shed.
    """

    def __init__(
        self, chooser: SimulatedScheduler, gate: Gate, *, most: int, wait_s: float
    ) -> None:
        self._chooser = chooser
        self._gate = gate
        self._most = most
        self._wait_s = wait_s
        self._jobs: deque[tuple[Job, float, Callable[[SimulatedChoice | None, float], None]]]
        self._jobs = deque()

    @property
    def poll_s(self) -> float | None:
        """Return the interval of the scheduler that chooses."""
        return self._chooser.poll_s

    @property
    def waiting(self) -> int:
        """Return the number of jobs that wait."""
        return len(self._jobs)

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:
        """Choose for a job if the gate is open."""
        return self._chooser.choose(job, now) if self._gate.opens(now) else None

    def submit(
        self, job: Job, now: float, told: Callable[[SimulatedChoice | None, float], None]
    ) -> None:
        """Let a job go, wait, or shed it."""
        self.pump(now)
        if not self._jobs and self._gate.opens(now):
            told(self._chooser.choose(job, now), now)
        elif len(self._jobs) < self._most:
            self._jobs.append((job, now, told))
        else:
            told(None, now)

    def pump(self, now: float) -> None:
        """Shed what has waited for too long, and let go what can go."""
        jobs = self._jobs
        while jobs:
            job, since, told = jobs[0]
            if now - since >= self._wait_s:
                jobs.popleft()
                told(None, now)
            elif self._gate.opens(now):
                jobs.popleft()
                told(self._chooser.choose(job, now), now)
            else:
                return

    def moved(self, job: Job, replica: int, now: float) -> None:
        """Forward to the scheduler that chooses."""
        self._chooser.moved(job, replica, now)

    def answering(self, job: Job, now: float) -> None:
        """Forward to the scheduler that chooses."""
        self._chooser.answering(job, now)

    def settled(self, job: Job, now: float) -> None:
        """Forward to the gate and the scheduler that chooses."""
        self._gate.ended(now)
        self._chooser.settled(job, now)

    def observe(self, replica: int, sample: SimulatedSample, now: float) -> None:
        """Forward to the gate and the scheduler that chooses."""
        self._gate.observe(replica, sample)
        self._chooser.observe(replica, sample, now)

    def membership(self, replica: int, change: str, now: float) -> None:
        """Forward to the scheduler that chooses."""
        self._chooser.membership(replica, change, now)


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
