"""One replica in virtual time: the engine of ``models/toy-llm`` with predictions for the oracle.

Rules:

1. The engine core implements batching, chunked prefill and the block cache. The time of a step is
   divided by the replica's speed.
2. The replica has no clock: only the fleet advances it, by calling ``advance`` at ``next_at``.
3. An arrival ends a stride without prompts at the end of the current step.
4. Each task ends once: finished, or dropped when the replica fails.
5. ``foresee`` and ``first_token_s`` are exact predictions, except for evictions, for answers that
   end meanwhile and, without ``cache_planned``, for a prompt that is admitted to the step that ends
   one whose blocks it shares; ``wait_s`` counts prompts that are partly computed as whole. Only the
   oracles may use them.
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
        """Expected value of ``left`` on arrival, given all queued tasks."""
        self.first_at: float | None = None


class SimulatedReplica:
    """One simulated replica.

    Args:
        engine: Parameters of the engine.
        speed: Factor on all rates; 0.5 takes twice as long.
    """

    def __init__(self, engine: EngineConfig, speed: float = 1.0) -> None:
        self.engine = engine
        self.speed = speed
        self.next_at = inf
        """End of the current stride, seconds; infinite when idle."""
        self.busy_s = 0.0
        self.backlog_tokens = 0
        """Prompt tokens to compute for all tasks without a first token, as expected on arrival."""
        self.prompt_tokens = 0
        """Tokens of all prompts whose first token has come."""
        self.prompts = 0
        """Number of these prompts."""
        self.first_tokens_s = 0.0
        """Sum of the seconds to their first tokens."""
        self.coming: dict[int, int] = {}
        """Block -> number of tasks with an unfinished prompt that contain it."""
        self._core: EngineCore[ReplicaTask] = EngineCore(engine)
        self._leaving: list[ReplicaTask] = []
        """Tasks to drop at the end of this stride."""
        self._start = 0.0
        self._step_s = 0.0

    def __repr__(self) -> str:
        return f"<SimulatedReplica waiting={self.queued} running={self.running}>"

    # --- State ----------------------------------------------------------------------------------

    @property
    def cache(self) -> BlockCache:
        """Return the block cache."""
        return self._core.cache

    @property
    def queued(self) -> int:
        """Return the number of requests that wait for admission."""
        return self._core.queued

    @property
    def running(self) -> int:
        """Return the number of requests in the batch."""
        return self._core.running

    @property
    def decoding(self) -> int:
        """Return the number of requests in decode."""
        return self._core.decoding

    @property
    def kv_used(self) -> float:
        """Return the fraction of the cache that running requests hold."""
        return self.cache.used / self.cache.capacity

    @property
    def computed_tokens(self) -> int:
        """Return the number of computed prompt tokens."""
        return self._core.computed_tokens

    @property
    def generated_tokens(self) -> int:
        """Return the number of generated tokens."""
        return self._core.generated_tokens

    def foresee(self, job: Job) -> int:
        """Return the prompt tokens to compute if the job came now; exact except for evictions."""
        has, coming = self.cache.has, self.coming
        depth = 0
        for block in job.blocks:
            if block not in coming and not has(block):
                break
            depth += 1
        return max(1, job.input_tokens - depth * self.engine.block_tokens)

    def wait_s(self, job: Job) -> float:
        """Return the TTFT of the job, seconds, as if no waiting prompt had been begun."""
        return self._compute_s(self.backlog_tokens + self.foresee(job))

    def first_token_s(self, job: Job, now: float) -> float:
        """Return the TTFT of the job, seconds, if it arrived at ``now`` and no job followed."""
        core = self._core
        done = sum(task.expected - task.left for task in core.unfinished) + core.chunk_tokens
        rest = self._compute_s(self.backlog_tokens - done + self.foresee(job))
        return rest + (self.next_at - now if core.prefills else 0.0)

    def _compute_s(self, tokens: int) -> float:
        per_step, room = self._core.step_budget(self.decoding)
        return (tokens / self.engine.prefill_rate + ceil(tokens / room) * per_step) / self.speed

    # --- Events ---------------------------------------------------------------------------------

    def arrive(self, task: ReplicaTask, now: float) -> None:
        """Queue a task.

        Raises:
            ValueError: The cache is too small for the task alone.
        """
        core = self._core
        core.arrive(task)
        task.expected = self.foresee(task.job)
        self.backlog_tokens += task.expected
        for block in task.job.blocks:
            self.coming[block] = self.coming.get(block, 0) + 1
        if self.next_at == inf:
            self._begin(now)
        else:
            self._cut(now)

    def leave(self, task: ReplicaTask, now: float) -> None:
        """Drop a task that has not ended at the end of this step, as an engine that aborts."""
        self._leaving.append(task)
        self._cut(now)

    def advance(self) -> Ended[ReplicaTask]:
        """End the current stride at ``next_at`` and start the next one."""
        now = self.next_at
        self.busy_s += now - self._start
        ended = self._core.end()
        for task in ended.first:
            self._prompt_done(task, now)
        for task in self._leaving:
            if task not in ended.finished:
                self._core.cancel(task)
                if task.first_at is None:
                    self._not_coming(task)
        self._leaving.clear()
        self._begin(now)
        return ended

    def fail(self) -> list[ReplicaTask]:
        """Drop all state; return its tasks, starting with the oldest of the batch."""
        self.coming.clear()
        self.backlog_tokens = 0
        self._leaving.clear()
        self.next_at = inf
        return self._core.clear()

    # --- Internals ------------------------------------------------------------------------------

    def _prompt_done(self, task: ReplicaTask, now: float) -> None:
        task.first_at = now
        self.prompt_tokens += task.job.input_tokens
        self.prompts += 1
        self.first_tokens_s += now - task.sent_at
        self._not_coming(task)

    def _not_coming(self, task: ReplicaTask) -> None:
        """Count a task's prompt no more among those to compute."""
        self.backlog_tokens -= task.expected
        coming = self.coming
        for block in task.job.blocks:
            users = coming[block] - 1
            if users:
                coming[block] = users
            else:
                del coming[block]

    def _cut(self, now: float) -> None:
        """End a stride of several steps with the current one."""
        core = self._core
        if not core.prefills and core.steps > 1:
            done = max(1, ceil((now - self._start) / self._step_s))
            if done < core.steps:
                core.cut(done)
                self.next_at = self._start + done * self._step_s

    def _begin(self, now: float) -> None:
        core = self._core
        steps = core.begin()
        self._start = now
        if steps:
            self._step_s = core.step_s / self.speed
            self.next_at = now + steps * self._step_s
        else:
            self.next_at = inf
