"""Several pickers side by side: each decides on its share of the jobs, as behind one Envoy.

They are of one kind and share nothing: what one sent, the others see only in readings. Readings
and changes of membership reach all of them at the same time.
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
    """Schedulers behind one interface; which one decides on a job is drawn by chance.

    Args:
        make: Makes one scheduler.
        world: The simulation; each scheduler gets chance of its own.
    """

    def __init__(self, make: Callable[[World], SimulatedScheduler], world: World) -> None:
        self._rng = world.rng
        self._schedulers = [
            make(replace(world, rng=Random(world.rng.getrandbits(64))))  # noqa: S311 - repeatable
            for _ in range(world.scenario.pickers)
        ]
        self._of: dict[int, SimulatedScheduler] = {}
        """Who decided, per job in flight."""

    def choose(self, job: Job, now: float) -> SimulatedChoice | None:
        """Let one of them choose."""
        scheduler = self._rng.choice(self._schedulers)
        choice = scheduler.choose(job, now)
        if choice is not None:
            self._of[job.index] = scheduler
        return choice

    def moved(self, job: Job, replica: int, now: float) -> None:
        """Tell the one that decided."""
        self._of[job.index].moved(job, replica, now)

    def answering(self, job: Job, now: float) -> None:
        """Tell the one that decided."""
        self._of[job.index].answering(job, now)

    def settled(self, job: Job, now: float) -> None:
        """Tell the one that decided, for the last time."""
        self._of.pop(job.index).settled(job, now)

    def observe(self, replica: int, sample: SimulatedSample, now: float) -> None:
        """Tell all."""
        for scheduler in self._schedulers:
            scheduler.observe(replica, sample, now)

    def membership(self, replica: int, change: str, now: float) -> None:
        """Tell all."""
        for scheduler in self._schedulers:
            scheduler.membership(replica, change, now)
