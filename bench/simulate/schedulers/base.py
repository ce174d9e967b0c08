"""Interface between the simulated fleet and a scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from bench.simulate.replica import SimulatedReplica
    from bench.simulate.scenario import Scenario
    from bench.simulate.workload import Job


class SimulatedChoice(NamedTuple):
    """Decision of a simulated scheduler."""

    replicas: Sequence[int]
    """The picked replica, then its fallbacks; not empty."""
    matched: int = 0
    """Prompt blocks that the scheduler expects in the cache of the picked replica."""


class SimulatedSample(NamedTuple):
    """Telemetry of one replica."""

    at: float
    """Time of the measurement, simulated seconds."""
    queued: int
    running: int
    kv_used: float
    queued_tokens: int
    """Prompt tokens that wait for computation; not every engine reports them."""
    prompt_tokens: int = 0
    """Counter of the tokens of all prompts that were computed or found."""
    prompts: int = 0
    """Counter of these prompts."""
    first_tokens_s: float = 0.0
    """Sum of the seconds to their first tokens."""


@dataclass(frozen=True, slots=True)
class World:
    """Input for the construction of a scheduler."""

    scenario: Scenario
    rng: Random
    fleet: Sequence[SimulatedReplica]
    """The replicas. Only the oracle and schedulers with exact cache events may read them; their
    docstrings say so."""
    block_tokens: int


class SimulatedScheduler(Protocol):
    """Selects replicas for jobs. Times are simulated seconds and never decrease."""

    @property
    def poll_s(self) -> float | None:
        """Return how often it reads telemetry, seconds; ``None``: as often as the scenario says."""
        ...

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:
        """Select replicas and count the job on the first one; ``None`` sheds the job."""
        ...

    def moved(self, job: Job, replica: int, now: float) -> None:
        """Handle a job that moved to the fallback ``replica``, because its replica was dead."""
        ...

    def answering(self, job: Job, now: float) -> None:
        """Handle the first token of a job."""
        ...

    def settled(self, job: Job, now: float) -> None:
        """Handle the end of a job with any outcome; called once per choice."""
        ...

    def observe(self, replica: int, sample: SimulatedSample, now: float) -> None:
        """Handle the telemetry of a replica."""
        ...

    def membership(self, replica: int, change: str, now: float) -> None:
        """Handle a replica that ``joined``, went ``silent`` or ``restarted`` with a cold cache."""
        ...


@runtime_checkable
class QueueingScheduler(Protocol):
    """A scheduler in which jobs wait for a replica with room, by its own rules."""

    @property
    def waiting(self) -> int:
        """Return the number of jobs that wait."""
        ...

    def submit(
        self, job: Job, now: float, told: Callable[[SimulatedChoice | None, float], None]
    ) -> None:
        """Take a job; ``told`` gets the choice, or ``None`` if the job is shed, and when."""
        ...

    def pump(self, now: float) -> None:
        """Send the jobs that can go, and shed those that have waited for too long."""
        ...
