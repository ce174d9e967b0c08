"""One replica: continuous batching, chunked prefill, a block cache.

Rules:

1. Time passes in *steps*. A step gives each decoding request one token and spends what is left
   of the step's token budget on prompts, first come first served. It takes
   ``base + per_request * decoding + prompt_tokens / prefill_rate`` seconds, divided by the
   replica's speed: a long prompt slows down everybody's next token, as it does in an engine.
2. A request is admitted when its prompt's turn comes, a place in the batch is free and the whole
   of its prompt and answer fits into the cache beside the other running requests (so nothing is
   ever preempted). What the cache holds at that moment is not computed again.
3. The first token comes with the end of the step that ends the prompt; its blocks can be matched
   by others from then on.
4. Steps without a prompt are all alike, so they are taken in one stride up to the next end of an
   answer; an arrival cuts the stride at the end of the step in which it falls.
5. Each task ends once: finished, or dropped when the replica fails.

The replica has no clock: the fleet calls ``advance`` at ``next_at``, and nothing else moves it.
The defaults are those of the published mock worker of SMG (sgl-model-gateway), but for the cache,
whose 3,000 blocks of 512 tokens are what the reference hit ratios of the trace are given for.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, inf
from typing import TYPE_CHECKING

from bench.simulate.cache import BlockCache
from bench.simulate.workload import BLOCK_TOKENS

if TYPE_CHECKING:
    from bench.simulate.workload import Job


@dataclass(frozen=True, slots=True)
class Engine:
    """What replicas are like."""

    prefill_rate: float = 8_000.0
    """Prompt tokens per second."""
    base_s: float = 0.006
    """Seconds that any step takes."""
    per_request_s: float = 0.00035
    """Seconds that each decoding request adds to a step."""
    step_tokens: int = 2_048
    """Most tokens of one step, prompts and answers together."""
    max_running: int = 256
    """Most requests in the batch."""
    cache_blocks: int = 3_000
    block_tokens: int = BLOCK_TOKENS
    base_always: bool = True
    """Whether a step that decodes nothing takes ``base_s`` too."""
    shared_budget: bool = True
    """Whether decoding requests take their tokens from ``step_tokens``, or it is all prompts'."""


class Task:
    """One job on one replica."""

    __slots__ = (
        "expected",
        "first_at",
        "job",
        "left",
        "matched",
        "private",
        "sent_at",
    )

    def __init__(self, job: Job, sent_at: float, block_tokens: int) -> None:
        self.job = job
        self.sent_at = sent_at
        self.matched = 0
        """Blocks found in the cache at admission."""
        self.left = job.input_tokens
        """Prompt tokens still to compute."""
        self.expected = job.input_tokens
        """What ``left`` was expected to be on arrival, given all that waits before it."""
        self.first_at: float | None = None
        total = job.input_tokens + job.output_tokens
        self.private = ceil(total / block_tokens) - len(job.blocks)

    def __repr__(self) -> str:
        return f"<Task {self.job.index} left={self.left}>"


class Ended:
    """What a stride brought: first tokens and finished answers, both at its end."""

    __slots__ = ("finished", "first")

    def __init__(self) -> None:
        self.first: list[Task] = []
        self.finished: list[Task] = []


class Replica:
    """One simulated replica.

    Args:
        engine: What it is like.
        speed: Multiplies its rate; 0.5 takes twice as long for everything.
    """

    def __init__(self, engine: Engine, speed: float = 1.0) -> None:
        self.engine = engine
        self.speed = speed
        self.cache = BlockCache(engine.cache_blocks)
        self.next_at = inf
        """When the present stride ends; infinite when there is nothing to do."""
        self.busy_s = 0.0
        self.computed_tokens = 0
        self.generated_tokens = 0
        self.backlog_tokens = 0
        """Prompt tokens to compute for all that is not answered yet, as expected on arrival."""
        self.coming: dict[int, int] = {}
        """Blocks of requests whose prompt is not done yet, with how many they are in."""
        self._waiting: deque[Task] = deque()
        self._prompts: deque[Task] = deque()
        self._decoding: list[tuple[int, int, Task]] = []
        self._ticks = 0
        self._start = 0.0
        self._step_s = 0.0
        self._steps = 0
        self._chunks: list[tuple[Task, int]] = []

    def __repr__(self) -> str:
        return f"<Replica waiting={self.queued} running={self.running}>"

    # --- What can be seen -----------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Return the requests that wait for admission."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Return the requests in the batch."""
        return len(self._prompts) + len(self._decoding)

    @property
    def decoding(self) -> int:
        """Return the requests that are being answered."""
        return len(self._decoding)

    @property
    def kv_used(self) -> float:
        """Return the share of the cache that running requests hold."""
        return self.cache.used / self.cache.capacity

    def foresee(self, job: Job) -> int:
        """Return the prompt tokens to compute if the job came now: exact but for evictions."""
        depth = 0
        for block in job.blocks:
            if block not in self.coming and not self.cache.has(block):
                break
            depth += 1
        return max(1, job.input_tokens - depth * self.engine.block_tokens)

    def wait_s(self, job: Job) -> float:
        """Return the seconds to the job's first token if it came now and nobody after it."""
        engine = self.engine
        tokens = self.backlog_tokens + self.foresee(job)
        per_step, room = self._step(len(self._decoding))
        return (tokens / engine.prefill_rate + ceil(tokens / room) * per_step) / self.speed

    # --- What happens ---------------------------------------------------------------------------

    def arrive(self, task: Task, now: float) -> None:
        """Queue a task.

        Raises:
            ValueError: It could not run even alone, as the cache is too small.
        """
        if len(task.job.blocks) + task.private > self.cache.capacity:
            raise ValueError(
                f"request {task.job.index} needs {len(task.job.blocks) + task.private} cache"
                f" blocks and a replica has {self.cache.capacity}"
            )
        task.expected = self.foresee(task.job)
        self.backlog_tokens += task.expected
        for block in task.job.blocks:
            self.coming[block] = self.coming.get(block, 0) + 1
        self._waiting.append(task)
        if self.next_at == inf:
            self._begin(now)
        elif not self._chunks and self._steps > 1:
            done = max(1, ceil((now - self._start) / self._step_s))
            if done < self._steps:
                self._steps = done
                self.next_at = self._start + done * self._step_s

    def advance(self) -> Ended:
        """End the present stride at ``next_at`` and begin the next one there."""
        now = self.next_at
        ended = Ended()
        self._ticks += self._steps
        self.busy_s += now - self._start
        self.generated_tokens += self._steps * len(self._decoding)
        for task, tokens in self._chunks:
            task.left -= tokens
            self.computed_tokens += tokens
            if task.left == 0:
                self._prompts.popleft()  # chunks are given in the order of the queue
                self._prompt_done(task, now)
                ended.first.append(task)
        while self._decoding and self._decoding[0][0] <= self._ticks:
            task = heappop(self._decoding)[2]
            self.cache.release(task.job.blocks, task.private)
            ended.finished.append(task)
        self._begin(now)
        return ended

    def fail(self) -> list[Task]:
        """Lose everything; return the tasks that were on it, the oldest in the batch first."""
        lost = [*(entry[2] for entry in sorted(self._decoding)), *self._prompts, *self._waiting]
        self._decoding.clear()
        self._prompts.clear()
        self._waiting.clear()
        self._chunks = []
        self.coming.clear()
        self.backlog_tokens = 0
        self.cache.clear()
        self.next_at = inf
        return lost

    # --- Inside ---------------------------------------------------------------------------------

    def _prompt_done(self, task: Task, now: float) -> None:
        task.first_at = now
        self.generated_tokens += 1
        self.backlog_tokens -= task.expected
        for block in task.job.blocks:
            users = self.coming[block] - 1
            if users:
                self.coming[block] = users
            else:
                del self.coming[block]
        self.cache.commit(task.job.blocks[task.matched :])
        last = self._ticks + task.job.output_tokens - 1
        heappush(self._decoding, (last, task.job.index, task))

    def _admit(self) -> Task | None:
        """Bring the first of the queue into the batch, ``None`` where it must wait."""
        if not self._waiting or self.running >= self.engine.max_running:
            return None
        task = self._waiting[0]
        matched = self.cache.match(task.job.blocks)
        if not self.cache.admit(task.job.blocks, matched, task.private):
            return None
        self._waiting.popleft()
        task.matched = matched
        # An engine computes at least the last prompt token, as that gives the first answer.
        task.left = max(1, task.job.input_tokens - matched * self.engine.block_tokens)
        self._prompts.append(task)
        return task

    def _step(self, decoding: int) -> tuple[float, int]:
        """Return a step's seconds without its prompts, and its room for them."""
        engine = self.engine
        base = engine.base_s if decoding or engine.base_always else 0.0
        room = engine.step_tokens - decoding if engine.shared_budget else engine.step_tokens
        return base + engine.per_request_s * decoding, room if room > 0 else 1

    def _begin(self, now: float) -> None:
        engine = self.engine
        decoding = len(self._decoding)
        step_s, room = self._step(decoding)
        chunks: list[tuple[Task, int]] = []
        for task in self._prompts:
            tokens = min(task.left, room)
            chunks.append((task, tokens))
            room -= tokens
            if not room:
                break
        while room and (admitted := self._admit()) is not None:
            tokens = min(admitted.left, room)
            chunks.append((admitted, tokens))
            room -= tokens
        self._chunks = chunks
        self._start = now
        if chunks:
            self._steps = 1
            step_s += sum(tokens for _, tokens in chunks) / engine.prefill_rate
        elif decoding:
            self._steps = self._decoding[0][0] - self._ticks
        else:
            self._steps = 0
            self.next_at = inf
            return
        self._step_s = step_s / self.speed
        self.next_at = now + self._steps * self._step_s
