"""One run: jobs arrive, a scheduler places them, replicas work, telemetry flows, things fail.

Rules:

1. Events are handled in the order of time; at one instant: replicas, troubles, telemetry,
   arrivals, and within each in the order of their making. A run is a function of its arguments.
2. Latency counts from the intended arrival (open loop): a slow fleet does not slow its clients.
3. Each job ends in exactly one way: served, shed (the scheduler refused) or lost (its replica died
   after it had begun to answer, or every replica named for it was dead).
4. A job whose replica dies before the first token goes on at once to the next fallback that is
   alive, as the proxy's retry does; the scheduler hears of it.
5. The scheduler hears of a death one telemetry interval later, as a failed scrape tells it.
6. A replica that brakes works slower from its next step on, and tells nobody.
7. While telemetry is frozen, readings go on to come with new times and old numbers: the harder
   case, as nobody can see that they are stale.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from bench.simulate.replica import ReplicaTask, SimulatedReplica
from bench.simulate.schedulers.base import SimulatedSample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.simulate.scenario import Scenario
    from bench.simulate.schedulers.base import SimulatedScheduler
    from bench.simulate.workload import Job

PROGRESS_EVERY = 256
_REPLICA, _TROUBLE, _TELEMETRY = range(3)


class End(StrEnum):
    """How a job ended."""

    SERVED = "served"
    SHED = "shed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Record:
    """What became of a job."""

    job: Job
    end: End
    replica: int | None = None
    """Who had it last."""
    ttft_s: float | None = None
    e2e_s: float | None = None
    matched: int = 0
    """Prompt blocks that were in the replica's cache."""
    predicted: int = 0
    """Prompt blocks that the scheduler believed to be there."""


class SimulatedFleet:
    """The replicas of one run and their event queue.

    Args:
        scenario: The fleet.
        replicas: One per replica of the scenario.
        scheduler: Who places the jobs.
        on_progress: Hears how many jobs have arrived, now and then.
    """

    def __init__(
        self,
        scenario: Scenario,
        replicas: Sequence[SimulatedReplica],
        scheduler: SimulatedScheduler,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        self._scenario = scenario
        self._replicas = replicas
        self._scheduler = scheduler
        self._on_progress = on_progress
        self._dead: set[int] = {index for index in (scenario.joiner,) if index is not None}
        self._tasks: dict[int, ReplicaTask] = {}
        self._choices: dict[int, tuple[Sequence[int], int]] = {}
        self._at: dict[int, int] = {}
        self._records: dict[int, Record] = {}
        self._events: list[tuple[float, int, int, Callable[[float], None]]] = []
        self._made = 0
        self._scheduled = [inf] * len(replicas)
        self._open = True
        self._told: dict[int, SimulatedSample] = {}
        """Each replica's latest reading."""

    def run(self, jobs: Sequence[Job], times: Sequence[float]) -> list[Record]:
        """Simulate all jobs to their ends.

        Args:
            jobs: With indices of their own, in the order of arrival.
            times: When each arrives, rising.

        Returns:
            One record per job, in the same order.
        """
        scenario = self._scenario
        if scenario.join_at_s is not None:
            self._later(scenario.join_at_s, _TROUBLE, self._join)
        if scenario.fail_at_s is not None:
            self._later(scenario.fail_at_s, _TROUBLE, self._fail)
        if scenario.brake_at_s is not None:
            self._later(scenario.brake_at_s, _TROUBLE, self._brake)
            self._later(scenario.brake_at_s + scenario.brake_s, _TROUBLE, self._release)
        if scenario.telemetry_s > 0:
            self._later(scenario.telemetry_s, _TELEMETRY, self._measure)
        for number, (job, now) in enumerate(zip(jobs, times, strict=True)):
            self._until(now)
            self._arrive(job, now)
            if self._on_progress is not None and number % PROGRESS_EVERY == 0:
                self._on_progress(number)
        self._open = False
        self._until(inf)
        return [self._records[job.index] for job in jobs]

    # --- Events ---------------------------------------------------------------------------------

    def _later(self, at: float, kind: int, call: Callable[[float], None]) -> None:
        self._made += 1
        heappush(self._events, (at, kind, self._made, call))

    def _until(self, now: float) -> None:
        events = self._events
        while events and events[0][0] <= now:
            at, _, _, call = heappop(events)
            call(at)
            if not self._open and not self._tasks:
                return  # what is left is telemetry and troubles that nobody feels

    def _schedule(self, index: int) -> None:
        at = self._replicas[index].next_at
        if at != self._scheduled[index]:
            self._scheduled[index] = at
            if at != inf:
                self._later(at, _REPLICA, lambda now: self._work(index, now))

    def _arrive(self, job: Job, now: float) -> None:
        choice = self._scheduler.choose(job, now)
        if choice is None:
            self._records[job.index] = Record(job, End.SHED)
            return
        self._choices[job.index] = (choice.replicas, choice.matched)
        task = ReplicaTask(job, now)
        self._send(task, choice.replicas, now)

    def _send(self, task: ReplicaTask, among: Sequence[int], now: float) -> None:
        """Give a task to the first of its choices that is alive."""
        job = task.job
        for place, index in enumerate(among):
            if index not in self._dead:
                if place or job.index in self._at:
                    self._scheduler.moved(job, index, now)
                self._at[job.index] = index
                self._tasks[job.index] = task
                self._replicas[index].arrive(task, now)
                self._schedule(index)
                return
        self._tasks.pop(job.index, None)
        self._end(task, End.LOST, now)

    def _work(self, index: int, now: float) -> None:
        replica = self._replicas[index]
        if replica.next_at != now:
            return  # an arrival or a failure has changed the plan since
        ended = replica.advance()
        self._schedule(index)
        for task in ended.first:
            self._scheduler.answering(task.job, now)
        for task in ended.finished:
            del self._tasks[task.job.index]
            self._end(task, End.SERVED, now)

    def _end(self, task: ReplicaTask, end: End, now: float) -> None:
        job = task.job
        self._scheduler.settled(job, now)
        _, predicted = self._choices.pop(job.index)
        served = end is End.SERVED and task.first_at is not None
        self._records[job.index] = Record(
            job,
            end,
            self._at.pop(job.index, None),
            task.first_at - task.sent_at if served and task.first_at is not None else None,
            now - task.sent_at if served else None,
            task.matched if served else 0,
            predicted,
        )

    # --- Troubles and telemetry -----------------------------------------------------------------

    def _join(self, now: float) -> None:
        index = self._scenario.joiner
        if index is not None:
            self._dead.discard(index)
            self._scheduler.membership(index, "joined", now)

    def _fail(self, now: float) -> None:
        index = self._scenario.victim
        if index is None:
            return
        self._dead.add(index)
        lost = self._replicas[index].fail()
        self._scheduled[index] = inf
        self._later(now + self._scenario.down_s, _TROUBLE, self._return)
        heard = now + self._scenario.telemetry_s + self._scenario.telemetry_delay_s
        if self._scenario.telemetry_s > 0 and self._scenario.down_s > heard - now:
            self._later(
                heard, _TROUBLE, lambda then: self._scheduler.membership(index, "silent", then)
            )
        for task in lost:
            if task.first_at is not None:
                del self._tasks[task.job.index]
                self._end(task, End.LOST, now)
                continue
            replicas, _ = self._choices[task.job.index]
            fresh = ReplicaTask(task.job, task.sent_at)
            self._send(fresh, replicas, now)

    def _return(self, now: float) -> None:
        index = self._scenario.victim
        if index is not None:
            self._dead.discard(index)
            self._scheduler.membership(index, "restarted", now)

    def _brake(self, now: float) -> None:  # noqa: ARG002 - an event hears its time
        index = self._scenario.braked
        if index is not None:  # from its next step on
            self._replicas[index].speed = self._scenario.speed(index) * self._scenario.brake_speed

    def _release(self, now: float) -> None:  # noqa: ARG002 - an event hears its time
        index = self._scenario.braked
        if index is not None:
            self._replicas[index].speed = self._scenario.speed(index)

    def _measure(self, now: float) -> None:
        frozen = self._scenario.frozen(now)
        samples: list[tuple[int, SimulatedSample]] = []
        for index, replica in enumerate(self._replicas):
            if index in self._dead:
                self._told.pop(index, None)
                continue
            told = self._told.get(index)
            if frozen and told is not None:
                told = told._replace(at=now)
            else:
                told = SimulatedSample(
                    now, replica.queued, replica.running, replica.kv_used, replica.backlog_tokens
                )
            self._told[index] = told
            samples.append((index, told))

        def deliver(then: float) -> None:
            for index, sample in samples:
                if index not in self._dead:
                    self._scheduler.observe(index, sample, then)

        self._later(now + self._scenario.telemetry_delay_s, _TELEMETRY, deliver)
        self._later(now + self._scenario.telemetry_s, _TELEMETRY, self._measure)
