"""Several independent pickers behind one Envoy; each schedules a share of the jobs.

All run the same scheduler and share no state: a picker sees the jobs of the others only in
telemetry. Telemetry and membership changes reach all of them at the same time.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.simulate.schedulers.base import (
        SimulatedChoice,
        SimulatedSample,
        SimulatedScheduler,
        World,
    )
    from bench.simulate.workload import Job


class SeveralPickers:
    """A group of schedulers; each job goes to a random one.

    Args:
        make: Creates one scheduler.
        world: The simulation; each scheduler gets its own random generator.
    """

    def __init__(self, make: Callable[[World], SimulatedScheduler], world: World) -> None:
        self._rng = world.rng
        self._schedulers = [
            make(replace(world, rng=Random(world.rng.getrandbits(64))))  # noqa: S311 - repeatable
            for _ in range(world.scenario.pickers)
        ]
        self._of: dict[int, SimulatedScheduler] = {}
        """Scheduler of each job in flight."""

    @property
    def poll_s(self) -> float | None:
        """Return the interval of the schedulers."""
        return self._schedulers[0].poll_s

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:
        """Let a random scheduler choose."""
        scheduler = self._rng.choice(self._schedulers)
        choice = scheduler.choose(job, now)
        if choice is not None:
            self._of[job.index] = scheduler
        return choice

    def moved(self, job: Job, replica: int, now: float) -> None:
        """Forward to the job's scheduler."""
        self._of[job.index].moved(job, replica, now)

    def answering(self, job: Job, now: float) -> None:
        """Forward to the job's scheduler."""
        self._of[job.index].answering(job, now)

    def settled(self, job: Job, now: float) -> None:
        """Forward to the job's scheduler and forget the job."""
        self._of.pop(job.index).settled(job, now)

    def observe(self, replica: int, sample: SimulatedSample, now: float) -> None:
        """Forward to all schedulers."""
        for scheduler in self._schedulers:
            scheduler.observe(replica, sample, now)

    def membership(self, replica: int, change: str, now: float) -> None:
        """Forward to all schedulers."""
        for scheduler in self._schedulers:
            scheduler.membership(replica, change, now)
