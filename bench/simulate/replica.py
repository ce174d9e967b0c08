"""One replica in virtual time: the engine of ``models/toy-llm``, and what it foresees.

Rules:

1. Batching, chunked prefill and the block cache are the engine core's. A step's time is divided
   by the replica's speed.
2. The replica has no clock: the fleet calls ``advance`` at ``next_at``, and nothing else moves it.
3. An arrival cuts a stride without prompts at the end of the step in which it falls.
4. Each task ends once: finished, or dropped when the replica fails.
5. ``foresee`` and ``wait_s`` tell the truth about the future, but for evictions. Only the oracle
   may ask.
"""

from __future__ import annotations

from math import ceil, inf
from typing import TYPE_CHECKING

from bench.engine import Ended, EngineConfig, EngineCore, Task

if TYPE_CHECKING:
    from bench.engine import BlockCache
    from bench.simulate.workload import Job


class ReplicaTask(Task):
    """One job on one replica."""

    __slots__ = ("expected", "first_at", "job", "sent_at")

    def __init__(self, job: Job, sent_at: float) -> None:
        super().__init__(job.index, job.input_tokens, job.output_tokens, job.blocks)
        self.job = job
        self.sent_at = sent_at
        self.expected = job.input_tokens
        """What ``left`` was expected to be on arrival, given all that waits before it."""
        self.first_at: float | None = None


class SimulatedReplica:
    """One simulated replica.

    Args:
        engine: What it is like.
        speed: Multiplies its rate; 0.5 takes twice as long for everything.
    """

    def __init__(self, engine: EngineConfig, speed: float = 1.0) -> None:
        self.engine = engine
        self.speed = speed
        self.next_at = inf
        """When the present stride ends; infinite when there is nothing to do."""
        self.busy_s = 0.0
        self.backlog_tokens = 0
        """Prompt tokens to compute for all that is not answered yet, as expected on arrival."""
        self.coming: dict[int, int] = {}
        """Blocks of requests whose prompt is not done yet, with how many they are in."""
        self._core: EngineCore[ReplicaTask] = EngineCore(engine)
        self._start = 0.0
        self._step_s = 0.0

    def __repr__(self) -> str:
        return f"<SimulatedReplica waiting={self.queued} running={self.running}>"

    # --- What can be seen -----------------------------------------------------------------------

    @property
    def cache(self) -> BlockCache:
        """Return the replica's blocks."""
        return self._core.cache

    @property
    def queued(self) -> int:
        """Return the requests that wait for admission."""
        return self._core.queued

    @property
    def running(self) -> int:
        """Return the requests in the batch."""
        return self._core.running

    @property
    def decoding(self) -> int:
        """Return the requests that are being answered."""
        return self._core.decoding

    @property
    def kv_used(self) -> float:
        """Return the share of the cache that running requests hold."""
        return self.cache.used / self.cache.capacity

    @property
    def computed_tokens(self) -> int:
        """Return the prompt tokens that were computed."""
        return self._core.computed_tokens

    @property
    def generated_tokens(self) -> int:
        """Return the tokens of answers."""
        return self._core.generated_tokens

    def foresee(self, job: Job) -> int:
        """Return the prompt tokens to compute if the job came now: exact but for evictions."""
        has, coming = self.cache.has, self.coming
        depth = 0
        for block in job.blocks:
            if block not in coming and not has(block):
                break
            depth += 1
        return max(1, job.input_tokens - depth * self.engine.block_tokens)

    def wait_s(self, job: Job) -> float:
        """Return the seconds to the job's first token if it came now and no other after it."""
        tokens = self.backlog_tokens + self.foresee(job)
        per_step, room = self._core.step_budget(self.decoding)
        return (tokens / self.engine.prefill_rate + ceil(tokens / room) * per_step) / self.speed

    # --- What happens ---------------------------------------------------------------------------

    def arrive(self, task: ReplicaTask, now: float) -> None:
        """Queue a task.

        Raises:
            ValueError: It could not run even alone, as the cache is too small.
        """
        core = self._core
        core.arrive(task)
        task.expected = self.foresee(task.job)
        self.backlog_tokens += task.expected
        for block in task.job.blocks:
            self.coming[block] = self.coming.get(block, 0) + 1
        if self.next_at == inf:
            self._begin(now)
        elif not core.prefills and core.steps > 1:
            done = max(1, ceil((now - self._start) / self._step_s))
            if done < core.steps:
                core.cut(done)
                self.next_at = self._start + done * self._step_s

    def advance(self) -> Ended[ReplicaTask]:
        """End the present stride at ``next_at`` and begin the next one there."""
        now = self.next_at
        self.busy_s += now - self._start
        ended = self._core.end()
        for task in ended.first:
            self._prompt_done(task, now)
        self._begin(now)
        return ended

    def fail(self) -> list[ReplicaTask]:
        """Lose everything; return the tasks that were on it, the oldest in the batch first."""
        self.coming.clear()
        self.backlog_tokens = 0
        self.next_at = inf
        return self._core.clear()

    # --- Inside ---------------------------------------------------------------------------------

    def _prompt_done(self, task: ReplicaTask, now: float) -> None:
        task.first_at = now
        self.backlog_tokens -= task.expected
        coming = self.coming
        for block in task.job.blocks:
            users = coming[block] - 1
            if users:
                coming[block] = users
            else:
                del coming[block]

    def _begin(self, now: float) -> None:
        core = self._core
        steps = core.begin()
        self._start = now
        if steps:
            self._step_s = core.step_s / self.speed
            self.next_at = now + steps * self._step_s
        else:
            self.next_at = inf
