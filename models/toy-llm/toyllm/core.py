"""The engine core: continuous batching with chunked prefill over one block cache.

The toy model runs it in wall time with real text; the benchmarks' simulated and emulated replicas
run it in virtual time with token counts. ``EngineConfig`` contains their differences.

Rules:

1. Work is done in *steps*. A step gives each decoding request one token and spends the rest of its
   token budget on prompts, first come, first served. A long prompt thus delays the next tokens of
   other requests but never stops them.
2. Requests are admitted in order of arrival, when the batch has a free slot and all blocks of the
   prompt and the answer fit beside those of the running requests; nothing is preempted. Cached
   blocks are not recomputed, but at least one token of a prompt is computed, because it yields the
   first token of the answer.
3. The first token is produced at the end of the step that completes the prompt, each further token
   at the end of a step.
4. A *stride* is a number of equal steps: one step if a prompt is computed, otherwise all steps up
   to the next end of an answer; ``cut`` shortens it. ``begin`` plans a stride and ``end`` executes
   it. Requests may arrive at any time; they are cancelled between strides only.
5. Each request ends once: finished, cancelled, or dropped by ``clear``.

The core has no clock: it returns the duration of a step, and its caller waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Generic, TypeVar

from toyllm.blocks import BlockCache

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from toyllm.blocks import BlockLease


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Size, speed and scheduling of an engine.

    The defaults are those of the mock worker published by SMG (sgl-model-gateway), except for the
    cache: its 3,000 blocks of 512 tokens are the size for which the reference hit ratios of
    Mooncake's trace are given.
    """

    prefill_rate: float = 8_000.0
    """Prompt tokens per second."""
    base_s: float = 0.006
    """Fixed time of a step, seconds."""
    per_request_s: float = 0.00035
    """Additional time of a step per decoding request, seconds."""
    step_tokens: int = 2_048
    """Token budget of a step, prompts and answers together."""
    max_running: int = 256
    """Maximum number of requests in the batch."""
    cache_blocks: int = 3_000
    block_tokens: int = 512
    base_always: bool = True
    """Whether a step without decoding requests also takes ``base_s``."""
    shared_budget: bool = True
    """Whether decoding requests consume ``step_tokens``; otherwise prompts get all of it."""
    admit_ahead: bool = False
    """Whether a request is admitted when the step has no budget left for its prompt."""
    cache_at_once: bool = False
    """Whether a block, also of an answer, can be matched from the end of the step that fills it;
    otherwise only blocks of prompts can be matched, from the request's first token on."""
    cache_planned: bool = True
    """Whether a block of a prompt can be matched as soon as the step that fills it is planned, as
    in vLLM: a request that is admitted to the same step finds it."""
    recompute_block: bool = False
    """Whether the last block of a completely cached prompt is recomputed, as in vLLM; otherwise
    only its last token."""


class Task:
    """One request and its progress.

    Args:
        index: Unique number; of requests that end in the same step, the lowest ends first.
        prompt_tokens: Tokens of the prompt.
        answer_tokens: Tokens of the answer; at least 1.
        blocks: Names of the prompt's full blocks, root first; a name identifies its whole prefix.
            With ``cache_at_once``, the caller appends the blocks that the answer fills.
    """

    __slots__ = ("answer_tokens", "blocks", "index", "lease", "left", "needed", "prompt_tokens")

    def __init__(
        self, index: int, prompt_tokens: int, answer_tokens: int, blocks: Sequence[Hashable]
    ) -> None:
        self.index = index
        self.prompt_tokens = prompt_tokens
        self.answer_tokens = answer_tokens
        self.blocks = blocks
        self.left = prompt_tokens
        """Prompt tokens still to compute."""
        self.needed = 0
        """Number of blocks of the prompt and the answer; set by the core on arrival."""
        self.lease: BlockLease | None = None
        """Its lease in the cache, from admission on."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.index} left={self.left}>"

    @property
    def matched(self) -> int:
        """Return the number of blocks found in the cache at admission."""
        return 0 if self.lease is None else self.lease.cached_blocks


TaskT = TypeVar("TaskT", bound=Task)


class Ended(Generic[TaskT]):
    """Result of a stride: first tokens and finished answers, both at its end."""

    __slots__ = ("finished", "first")

    def __init__(self) -> None:
        self.first: list[TaskT] = []
        self.finished: list[TaskT] = []


class EngineCore(Generic[TaskT]):
    """Scheduler and cache of one engine.

    Args:
        config: Parameters of the engine.

    Attributes:
        cache: The block cache.
        steps: Steps of the current stride; 0 when idle.
        step_s: Duration of each step, seconds.
        steps_total: Number of executed steps.
        computed_tokens: Number of computed prompt tokens.
        generated_tokens: Number of generated tokens.
    """

    __slots__ = (
        "_chunks",
        "_decoding",
        "_prompts",
        "_waiting",
        "cache",
        "computed_tokens",
        "config",
        "generated_tokens",
        "step_s",
        "steps",
        "steps_total",
    )

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.cache = BlockCache(config.cache_blocks)
        self.steps = 0
        self.step_s = 0.0
        self.steps_total = 0
        self.computed_tokens = 0
        self.generated_tokens = 0
        self._waiting: deque[TaskT] = deque()
        self._prompts: deque[TaskT] = deque()
        self._decoding: list[tuple[int, int, TaskT]] = []
        """Heap of (step after which a request ends, its index, the request)."""
        self._chunks: list[tuple[TaskT, int]] = []
        """Requests whose prompts the current stride computes, with their numbers of tokens."""

    # --- State ----------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Return the number of requests that wait for admission."""
        return len(self._waiting)

    @property
    def prefilling(self) -> int:
        """Return the number of requests in the batch with an unfinished prompt."""
        return len(self._prompts)

    @property
    def decoding(self) -> int:
        """Return the number of decoding requests."""
        return len(self._decoding)

    @property
    def running(self) -> int:
        """Return the number of requests in the batch."""
        return len(self._prompts) + len(self._decoding)

    @property
    def prefills(self) -> bool:
        """Return whether the current stride computes prompts."""
        return bool(self._chunks)

    @property
    def chunk_tokens(self) -> int:
        """Return the number of prompt tokens that the current stride computes."""
        return sum(tokens for _, tokens in self._chunks)

    @property
    def unfinished(self) -> tuple[TaskT, ...]:
        """Return the requests in the batch with an unfinished prompt, oldest first."""
        return tuple(self._prompts)

    def due(self) -> list[TaskT]:
        """Return the requests that get a token at the end of the current stride's first step.

        Decoding requests come first, then those whose prompt it completes; each oldest first.
        """
        decoding = [entry[2] for entry in self._decoding]
        decoding.sort(key=_index)
        decoding.extend(task for task, tokens in self._chunks if tokens == task.left)
        return decoding

    def need(self, task: TaskT) -> int:
        """Return the number of blocks of a request's prompt and answer, partial ones included."""
        return -(-(task.prompt_tokens + task.answer_tokens) // self.config.block_tokens)

    def step_budget(self, decoding: int) -> tuple[float, int]:
        """Return the duration of a step without prompts, seconds, and its prompt budget, tokens."""
        config = self.config
        base = config.base_s if decoding or config.base_always else 0.0
        room = config.step_tokens - decoding if config.shared_budget else config.step_tokens
        return base + config.per_request_s * decoding, room if room > 0 else 1

    # --- Operations -----------------------------------------------------------------------------

    def arrive(self, task: TaskT) -> None:
        """Queue a request.

        Raises:
            ValueError: The cache is too small for the request alone.
        """
        need = self.need(task)
        if need > self.cache.capacity:
            raise ValueError(
                f"request {task.index} needs {need} cache blocks and a replica has"
                f" {self.cache.capacity}"
            )
        task.needed = need
        self._waiting.append(task)

    def begin(self) -> int:
        """Plan a stride: admit requests and distribute the budget; return the number of steps."""
        decoding = len(self._decoding)
        step_s, room = self.step_budget(decoding)
        if self.config.admit_ahead:
            while self._admit() is not None:
                pass
        self._chunks = chunks = []
        for task in self._prompts:
            tokens = min(task.left, room)
            chunks.append((task, tokens))
            self._plan(task, tokens)
            room -= tokens
            if not room:
                break
        while room and (admitted := self._admit()) is not None:
            tokens = min(admitted.left, room)
            chunks.append((admitted, tokens))
            self._plan(admitted, tokens)
            room -= tokens
        if chunks:
            self.steps = 1
            step_s += sum(tokens for _, tokens in chunks) / self.config.prefill_rate
        elif decoding:
            self.steps = self._decoding[0][0] - self.steps_total
        else:
            self.steps = 0
        self.step_s = step_s
        return self.steps

    def cut(self, steps: int) -> None:
        """Shorten the current stride to ``steps`` steps, at least 1."""
        self.steps = min(self.steps, steps)

    def end(self) -> Ended[TaskT]:
        """Execute the current stride and return its result."""
        ended: Ended[TaskT] = Ended()
        heap, steps = self._decoding, self.steps
        self.steps = 0
        self.steps_total += steps
        self.generated_tokens += steps * len(heap)
        at_once = self.config.cache_at_once
        if at_once:
            for entry in heap:
                self._commit(entry[2])
        for task, tokens in self._chunks:
            task.left -= tokens
            self.computed_tokens += tokens
            if not task.left:
                self._prompts.popleft()  # chunks are in the order of the queue
                self.generated_tokens += 1
                self._commit(task)
                heappush(heap, (self.steps_total + task.answer_tokens - 1, task.index, task))
                ended.first.append(task)
            elif at_once:
                self._commit(task, task.left)
        self._chunks = []
        while heap and heap[0][0] <= self.steps_total:
            task = heappop(heap)[2]
            self._release(task)
            ended.finished.append(task)
        return ended

    def cancel(self, task: TaskT) -> None:
        """Drop a request that has not ended; only between strides.

        Raises:
            ValueError: The request is neither queued nor running.
        """
        if task.lease is None:
            self._waiting.remove(task)
            return
        if task in self._prompts:
            self._prompts.remove(task)
        else:
            left = [entry for entry in self._decoding if entry[2] is not task]
            if len(left) == len(self._decoding):
                raise ValueError(f"request {task.index} is not running")
            heapify(left)
            self._decoding = left
        self._release(task)

    def clear(self) -> list[TaskT]:
        """Drop all state; return all requests, starting with the oldest of the batch."""
        lost = [*(entry[2] for entry in sorted(self._decoding)), *self._prompts, *self._waiting]
        self._decoding.clear()
        self._prompts.clear()
        self._waiting.clear()
        self._chunks = []
        self.steps = 0
        self.cache.clear()
        return lost

    # --- Internals ------------------------------------------------------------------------------

    def _admit(self) -> TaskT | None:
        """Admit the first request of the queue to the batch; ``None`` if it must wait."""
        if not self._waiting:
            return None
        config = self.config
        if len(self._prompts) + len(self._decoding) >= config.max_running:
            return None
        task = self._waiting[0]
        most = len(task.blocks)
        if config.recompute_block:
            most = max(0, task.prompt_tokens - 1) // config.block_tokens
        lease = self.cache.lease(task.blocks, most, task.needed)
        if lease is None:
            return None
        self._waiting.popleft()
        task.lease = lease
        uncached = task.prompt_tokens - lease.cached_blocks * config.block_tokens
        # An empty prompt has no tokens to compute.
        task.left = max(min(1, task.prompt_tokens), uncached)
        self._prompts.append(task)
        return task

    def _plan(self, task: TaskT, tokens: int) -> None:
        """Make the blocks of a prompt that the current stride fills available to others."""
        if self.config.cache_planned:
            self._commit(task, task.left - tokens)

    def _commit(self, task: TaskT, left: int = 0) -> None:
        """Make the blocks of a request available to others, without ``left`` tokens of its end."""
        if task.lease is not None:
            blocks = task.blocks
            if left:
                done = task.prompt_tokens - left
                blocks = blocks[: done // self.config.block_tokens]
            self.cache.commit(task.lease, blocks)

    def _release(self, task: TaskT) -> None:
        if task.lease is not None:
            self.cache.release(task.lease)


def _index(task: Task) -> int:
    return task.index
