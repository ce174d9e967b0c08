"""What the simulated fleet asks of a scheduler and tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from bench.simulate.replica import SimulatedReplica
    from bench.simulate.scenario import Scenario
    from bench.simulate.workload import Job


class SimulatedChoice(NamedTuple):
    """An ordered choice."""

    replicas: Sequence[int]
    """The pick and then its fallbacks; not empty."""
    matched: int = 0
    """Prompt blocks that the scheduler believes the pick to hold."""


class SimulatedSample(NamedTuple):
    """What a replica says about itself."""

    at: float
    """When it was true."""
    queued: int
    running: int
    kv_used: float
    queued_tokens: int
    """Prompt tokens that wait for computation; not every engine tells them."""


@dataclass(frozen=True, slots=True)
class World:
    """What a scheduler is made with."""

    scenario: Scenario
    rng: Random
    fleet: Sequence[SimulatedReplica]
    """The replicas themselves. Only an oracle and rules that are fed by exact cache events may
    look into them; which ones do is said in their docstrings."""
    block_tokens: int


class SimulatedScheduler(Protocol):
    """Chooses replicas for jobs. Times are simulated seconds and never go back."""

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:
        """Choose, and count the job as sent to the first choice; ``None`` = refuse (shed) it."""
        ...

    def moved(self, job: Job, replica: int, now: float) -> None:
        """Hear that a fallback took the job, as its replica was dead."""
        ...

    def answering(self, job: Job, now: float) -> None:
        """Hear that the first token has come."""
        ...

    def settled(self, job: Job, now: float) -> None:
        """Hear that the job has ended in whichever way; once for each choice."""
        ...

    def observe(self, replica: int, sample: SimulatedSample, now: float) -> None:
        """Take a replica's telemetry."""
        ...

    def membership(self, replica: int, change: str, now: float) -> None:
        """Hear that a replica ``joined``, fell ``silent`` or ``restarted`` (with a cold cache)."""
        ...
