"""The engine core: continuous batching with chunked prefill over one block cache.

It serves the toy model, which runs it in wall time with real text, and the benchmarks' simulated
and emulated replicas, which run it in virtual time with token counts. What differs between them
is a setting of ``EngineConfig``.

Rules:

1. Work is done in *steps*. A step gives each decoding request one token and spends what is left
   of its token budget on prompts, first come first served, so that a long prompt delays the
   others' next tokens but never stops them.
2. A request is admitted in the order of arrival, when a place in the batch is free and all
   blocks of its prompt and answer fit beside those of the running requests: nothing is preempted.
   What the cache holds at that moment is not computed again, but at least one token of a prompt
   is computed, as that gives the first token of the answer.
3. The first token comes with the end of the step that ends the prompt, each further one with the
   end of a step.
4. A *stride* is a number of like steps: one where a prompt is computed, else as many as there are
   up to the next end of an answer; ``cut`` shortens it. ``begin`` plans a stride and ``end``
   carries it out. Requests arrive at any time; they are cancelled between strides only.
5. Each request ends once: finished, cancelled, or lost by ``clear``.

The core has no clock: it tells what a step takes, its user waits.
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
    """How large and how fast an engine is, and how it schedules.

    The defaults are those of the published mock worker of SMG (sgl-model-gateway), but for the
    cache, whose 3,000 blocks of 512 tokens are what the reference hit ratios of Mooncake's trace
    are given for.
    """

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
    block_tokens: int = 512
    base_always: bool = True
    """Whether a step that decodes nothing takes ``base_s`` too."""
    shared_budget: bool = True
    """Whether decoding requests take their tokens from ``step_tokens``, or it is all prompts'."""
    admit_ahead: bool = False
    """Whether a request is admitted although the step has no budget left for its prompt."""
    cache_at_once: bool = False
    """Whether a block can be matched from the end of the step that fills it, those of answers
    included; else only a prompt's blocks can, and from its first token on."""
    recompute_block: bool = False
    """Whether a prompt that is cached to its end has its last block computed again, as in vLLM,
    or only its last token."""


class Task:
    """One request: what is asked, and how far it is.

    Args:
        index: Tells requests apart; of those that end with one step the lowest ends first.
        prompt_tokens: Tokens of the prompt.
        answer_tokens: Tokens of the answer; at least 1.
        blocks: Names of the prompt's full blocks, root first; a name stands for its whole prefix.
            With ``cache_at_once`` its user appends those that the answer fills.
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
        """Blocks that its prompt and answer fill; told by the core on its arrival."""
        self.lease: BlockLease | None = None
        """Its blocks in the cache, from its admission on."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.index} left={self.left}>"

    @property
    def matched(self) -> int:
        """Return how many blocks were found in the cache at admission."""
        return 0 if self.lease is None else self.lease.cached_blocks


TaskT = TypeVar("TaskT", bound=Task)


class Ended(Generic[TaskT]):
    """What a stride brought: first tokens and finished answers, both at its end."""

    __slots__ = ("finished", "first")

    def __init__(self) -> None:
        self.first: list[TaskT] = []
        self.finished: list[TaskT] = []


class EngineCore(Generic[TaskT]):
    """Scheduler and cache of one engine.

    Args:
        config: What it is like.

    Attributes:
        cache: Its blocks.
        steps: Steps of the present stride; 0 where there is nothing to do.
        step_s: Seconds that each of them takes.
        steps_total: Steps that were done.
        computed_tokens: Prompt tokens that were computed.
        generated_tokens: Tokens of answers.
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
        """A heap: the step after which a request ends, its index, itself."""
        self._chunks: list[tuple[TaskT, int]] = []
        """Whose prompt the present stride computes, and how many tokens of it."""

    # --- What can be seen -----------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Return the requests that wait for admission."""
        return len(self._waiting)

    @property
    def prefilling(self) -> int:
        """Return the requests in the batch whose prompt is not done."""
        return len(self._prompts)

    @property
    def decoding(self) -> int:
        """Return the requests that are being answered."""
        return len(self._decoding)

    @property
    def running(self) -> int:
        """Return the requests in the batch."""
        return len(self._prompts) + len(self._decoding)

    @property
    def prefills(self) -> bool:
        """Tell whether the present stride computes prompts."""
        return bool(self._chunks)

    def due(self) -> list[TaskT]:
        """Return the requests that get a token at the end of the present stride's first step.

        Decoding ones come first, then those whose prompt it ends; each the oldest first.
        """
        decoding = [entry[2] for entry in self._decoding]
        decoding.sort(key=_index)
        decoding.extend(task for task, tokens in self._chunks if tokens == task.left)
        return decoding

    def need(self, task: TaskT) -> int:
        """Return the blocks that a request's prompt and answer fill, the last ones partly."""
        return -(-(task.prompt_tokens + task.answer_tokens) // self.config.block_tokens)

    def step_budget(self, decoding: int) -> tuple[float, int]:
        """Return a step's seconds without its prompts, and its room for them, in tokens."""
        config = self.config
        base = config.base_s if decoding or config.base_always else 0.0
        room = config.step_tokens - decoding if config.shared_budget else config.step_tokens
        return base + config.per_request_s * decoding, room if room > 0 else 1

    # --- What happens ---------------------------------------------------------------------------

    def arrive(self, task: TaskT) -> None:
        """Queue a request.

        Raises:
            ValueError: It could not run even alone, as the cache is too small.
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
        """Plan a stride: admit requests and share the budget out; return its steps."""
        decoding = len(self._decoding)
        step_s, room = self.step_budget(decoding)
        if self.config.admit_ahead:
            while self._admit() is not None:
                pass
        self._chunks = chunks = []
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
        """Shorten the present stride to so many steps, at least 1."""
        self.steps = min(self.steps, steps)

    def end(self) -> Ended[TaskT]:
        """Carry out the present stride; return what it brought."""
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
                self._prompts.popleft()  # chunks are given in the order of the queue
                self.generated_tokens += 1
                self._commit(task)
                heappush(heap, (self.steps_total + task.answer_tokens - 1, task.index, task))
                ended.first.append(task)
            elif at_once:
                self._commit(task)
        self._chunks = []
        while heap and heap[0][0] <= self.steps_total:
            task = heappop(heap)[2]
            self._release(task)
            ended.finished.append(task)
        return ended

    def cancel(self, task: TaskT) -> None:
        """Drop a request that has not ended; only between strides.

        Raises:
            ValueError: It is not here.
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
        """Lose everything; return the requests that were here, the oldest in the batch first."""
        lost = [*(entry[2] for entry in sorted(self._decoding)), *self._prompts, *self._waiting]
        self._decoding.clear()
        self._prompts.clear()
        self._waiting.clear()
        self._chunks = []
        self.steps = 0
        self.cache.clear()
        return lost

    # --- Inside ---------------------------------------------------------------------------------

    def _admit(self) -> TaskT | None:
        """Bring the first of the queue into the batch, ``None`` where it must wait."""
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
        # An empty prompt has nothing to compute.
        task.left = max(min(1, task.prompt_tokens), uncached)
        self._prompts.append(task)
        return task

    def _commit(self, task: TaskT) -> None:
        """Let others match what a request has computed."""
        if task.lease is not None:
            blocks = task.blocks
            if task.left:
                done = task.prompt_tokens - task.left
                blocks = blocks[: done // self.config.block_tokens]
            self.cache.commit(task.lease, blocks)

    def _release(self, task: TaskT) -> None:
        if task.lease is not None:
            self.cache.release(task.lease)


def _index(task: Task) -> int:
    return task.index
