"""Event loop of one run: arrivals, scheduling, replica steps, telemetry and incidents.

Rules:

1. Events are processed in order of time; at the same time in the order replicas, incidents,
   telemetry, arrivals, and within each kind in order of creation. A run is a pure function of its
   arguments.
2. Latency counts from the intended arrival (open loop): a slow fleet does not slow its clients.
3. Each job ends in exactly one way: served, shed (the scheduler refused it) or lost (its replica
   failed after the first token, or all replicas of its choice were dead).
4. A job whose replica fails before the first token moves at once to its next live fallback, like a
   retry of the proxy; the scheduler is notified.
5. The scheduler is notified of a failed replica one telemetry interval later, like a failed
   scrape.
6. A braked replica is slower from its next step on; the scheduler is not notified.
7. A job that the scheduler refuses waits for ``hold_s``, the oldest first, and is offered again
   whenever a job has ended or telemetry has arrived. A scheduler with a queue of its own
   (``QueueingScheduler``) is told of these times instead, and every ``LOOK_S`` while jobs wait.
8. The first telemetry is of the idle fleet: pages are read before traffic comes.
9. While telemetry is frozen, samples arrive with new times and old values, so that a scheduler
   cannot detect that they are stale.
10. A job reaches a replica of another zone a whole round trip late, so its answer need not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from bench.simulate.replica import ReplicaTask, SimulatedReplica
from bench.simulate.schedulers.base import QueueingScheduler, SimulatedSample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.simulate.scenario import Scenario
    from bench.simulate.schedulers.base import SimulatedChoice, SimulatedScheduler
    from bench.simulate.workload import Job

PROGRESS_EVERY = 256
ROUNDING = 1e-9
LOOK_S = 0.05
"""As often as a picker tries what waits (``ext_proc.server.pumping``)."""
_REPLICA, _TROUBLE, _TELEMETRY = range(3)


class End(StrEnum):
    """Outcome of a job."""

    SERVED = "served"
    SHED = "shed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Record:
    """Result of one job."""

    job: Job
    end: End
    replica: int | None = None
    """Last replica of the job."""
    ttft_s: float | None = None
    e2e_s: float | None = None
    matched: int = 0
    """Prompt blocks found in the replica's cache."""
    predicted: int = 0
    """Prompt blocks that the scheduler expected in the cache."""
    held_s: float = 0.0
    """How long the job waited before it was sent, seconds."""


class SimulatedFleet:
    """Replicas of one run and the event queue.

    Args:
        scenario: The fleet and its incidents.
        replicas: One per replica of the scenario.
        scheduler: Selects the replica of each job.
        on_progress: Called periodically with the number of arrived jobs.
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
        self._held_s: dict[int, float] = {}
        self._records: dict[int, Record] = {}
        self._held: deque[tuple[Job, float]] = deque()
        """Jobs that wait for a replica with room, and when they arrived."""
        self._queue = scheduler if isinstance(scheduler, QueueingScheduler) else None
        self._looks = False
        self._events: list[tuple[float, int, int, Callable[[float], None]]] = []
        self._made = 0
        self._scheduled = [inf] * len(replicas)
        self._open = True
        every = scenario.telemetry_s
        self._telemetry_s = min(every, scheduler.poll_s or every)
        self._telemetry_delay_s = scenario.telemetry_delay_s
        if every > 0:
            self._telemetry_delay_s *= self._telemetry_s / every
        self._latest: dict[int, SimulatedSample] = {}
        """Latest sample of each replica."""

    def run(self, jobs: Sequence[Job], times: Sequence[float]) -> list[Record]:
        """Simulate until all jobs have ended.

        Args:
            jobs: Jobs with unique indices, in order of arrival.
            times: Arrival times of the jobs, seconds, ascending.

        Returns:
            One record per job, in the order of ``jobs``.
        """
        scenario = self._scenario
        if scenario.join_at_s is not None:
            self._later(scenario.join_at_s, _TROUBLE, self._join)
        if scenario.fail_at_s is not None:
            self._later(scenario.fail_at_s, _TROUBLE, self._fail)
        if scenario.restart_at_s is not None:
            self._later(scenario.restart_at_s, _TROUBLE, self._restart)
        if scenario.brake_at_s is not None:
            self._later(scenario.brake_at_s, _TROUBLE, self._brake)
            self._later(scenario.brake_at_s + scenario.brake_s, _TROUBLE, self._release)
        if scenario.telemetry_s > 0:
            self._later(0.0, _TELEMETRY, self._measure)
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
            if not self._open and not self._tasks and not self._waits():
                return  # the remaining telemetry and incidents affect no job

    def _schedule(self, index: int) -> None:
        at = self._replicas[index].next_at
        if at != self._scheduled[index]:
            self._scheduled[index] = at
            if at != inf:
                self._later(at, _REPLICA, lambda now: self._work(index, now))

    def _waits(self) -> bool:
        return bool(self._held) if self._queue is None else self._queue.waiting > 0

    def _arrive(self, job: Job, now: float) -> None:
        if self._queue is not None:
            self._queue.submit(job, now, lambda choice, at: self._told(job, now, choice, at))
            self._look_later(now)
            return
        if self._held or not self._offer(job, now, now):
            if not self._scenario.hold_s:
                self._records[job.index] = Record(job, End.SHED)
                return
            self._held.append((job, now))
            self._later(now + self._scenario.hold_s, _TELEMETRY, self._release_held)

    def _offer(self, job: Job, arrived: float, now: float) -> bool:
        """Let the scheduler choose for a job; return whether it was sent."""
        choice = self._scheduler.choose(job, now)
        if choice is None:
            return False
        self._choices[job.index] = (choice.replicas, choice.matched)
        self._send(ReplicaTask(job, arrived), choice.replicas, now)
        return True

    def _told(self, job: Job, arrived: float, choice: SimulatedChoice | None, now: float) -> None:
        """Send a job to what its scheduler's queue chose for it, or shed it."""
        if choice is None:
            self._records[job.index] = Record(job, End.SHED)
            return
        self._choices[job.index] = (choice.replicas, choice.matched)
        self._send(ReplicaTask(job, arrived), choice.replicas, now)

    def _look_later(self, now: float) -> None:
        if self._waits() and not self._looks:
            self._looks = True
            self._later(now + LOOK_S, _TELEMETRY, self._look)

    def _look(self, now: float) -> None:
        self._looks = False
        self._release_held(now)
        self._look_later(now)

    def _release_held(self, now: float) -> None:
        """Send the jobs that wait, the oldest first, and shed those that waited for too long."""
        if self._queue is not None:
            self._queue.pump(now)
            return
        held = self._held
        while held:
            job, arrived = held[0]
            if now - arrived >= self._scenario.hold_s - ROUNDING:
                self._records[job.index] = Record(job, End.SHED)
            elif not self._offer(job, arrived, now):
                return
            held.popleft()

    def _send(self, task: ReplicaTask, among: Sequence[int], now: float) -> None:
        """Assign a task to the first live replica of its choice."""
        job = task.job
        for place, index in enumerate(among):
            if index not in self._dead:
                if place or job.index in self._at:
                    self._scheduler.moved(job, index, now)
                self._held_s.setdefault(job.index, now - task.sent_at)
                self._at[job.index] = index
                self._tasks[job.index] = task
                hop = self._scenario.hop_s(index)
                if hop:
                    self._later(now + hop, _TROUBLE, partial(self._reach, index, task))
                else:
                    self._reach(index, task, now)
                return
        self._tasks.pop(job.index, None)
        self._end(task, End.LOST, now)

    def _reach(self, index: int, task: ReplicaTask, now: float) -> None:
        if index in self._dead:
            self._move([task], now)
            return
        self._replicas[index].arrive(task, now)
        self._schedule(index)

    def _work(self, index: int, now: float) -> None:
        replica = self._replicas[index]
        if replica.next_at != now:
            return  # an arrival or a failure has rescheduled the replica
        ended = replica.advance()
        self._schedule(index)
        for task in ended.first:
            self._scheduler.answering(task.job, now)
        for task in ended.finished:
            del self._tasks[task.job.index]
            self._end(task, End.SERVED, now)
        if ended.finished and self._waits():
            self._release_held(now)

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
            self._held_s.pop(job.index, 0.0),
        )

    # --- Incidents and telemetry ----------------------------------------------------------------

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
        self._move(lost, now)

    def _move(self, lost: Sequence[ReplicaTask], now: float) -> None:
        for task in lost:
            if task.first_at is not None:
                del self._tasks[task.job.index]
                self._end(task, End.LOST, now)
                continue
            replicas, _ = self._choices[task.job.index]
            fresh = ReplicaTask(task.job, task.sent_at)
            self._send(fresh, replicas, now)

    def _restart(self, now: float) -> None:
        count = len(self._replicas)
        lost: list[ReplicaTask] = []
        for index in range(count - self._scenario.restarted_replicas, count):
            lost += self._replicas[index].fail()
            self._scheduled[index] = inf
            self._scheduler.membership(index, "restarted", now)
        self._move(lost, now)

    def _return(self, now: float) -> None:
        index = self._scenario.victim
        if index is not None:
            self._dead.discard(index)
            self._scheduler.membership(index, "restarted", now)

    def _brake(self, now: float) -> None:  # noqa: ARG002 - signature of event callbacks
        index = self._scenario.braked
        if index is not None:  # from its next step on
            self._replicas[index].speed = self._scenario.speed(index) * self._scenario.brake_speed

    def _release(self, now: float) -> None:  # noqa: ARG002 - signature of event callbacks
        index = self._scenario.braked
        if index is not None:
            self._replicas[index].speed = self._scenario.speed(index)

    def _measure(self, now: float) -> None:
        frozen = self._scenario.frozen(now)
        samples: list[tuple[int, SimulatedSample]] = []
        for index, replica in enumerate(self._replicas):
            if index in self._dead:
                self._latest.pop(index, None)
                continue
            latest = self._latest.get(index)
            if frozen and latest is not None:
                latest = latest._replace(at=now)
            else:
                latest = SimulatedSample(
                    now,
                    replica.queued,
                    replica.running,
                    replica.kv_used,
                    replica.backlog_tokens,
                    replica.prompt_tokens,
                    replica.prompts,
                    replica.first_tokens_s,
                )
            self._latest[index] = latest
            samples.append((index, latest))

        def deliver(then: float) -> None:
            for index, sample in samples:
                if index not in self._dead:
                    self._scheduler.observe(index, sample, then)
            if self._waits():
                self._release_held(then)

        self._later(now + self._telemetry_delay_s, _TELEMETRY, deliver)
        self._later(now + self._telemetry_s, _TELEMETRY, self._measure)
