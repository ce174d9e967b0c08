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

    from bench.simulate.choosers.base import Choice, Chooser, Sample, World
    from bench.simulate.workload import Job


class Several:
    """Choosers behind one interface; which one decides on a job is drawn by chance.

    Args:
        make: Makes one chooser.
        world: The simulation; each chooser gets chance of its own.
    """

    def __init__(self, make: Callable[[World], Chooser], world: World) -> None:
        self._rng = world.rng
        self._choosers = [
            make(replace(world, rng=Random(world.rng.getrandbits(64))))  # noqa: S311 - repeatable
            for _ in range(world.scenario.pickers)
        ]
        self._of: dict[int, Chooser] = {}
        """Who decided, per job in flight."""

    def choose(self, job: Job, now: float) -> Choice | None:
        """Let one of them choose."""
        chooser = self._rng.choice(self._choosers)
        choice = chooser.choose(job, now)
        if choice is not None:
            self._of[job.index] = chooser
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

    def observe(self, replica: int, sample: Sample, now: float) -> None:
        """Tell all."""
        for chooser in self._choosers:
            chooser.observe(replica, sample, now)

    def membership(self, replica: int, change: str, now: float) -> None:
        """Tell all."""
        for chooser in self._choosers:
            chooser.membership(replica, change, now)
