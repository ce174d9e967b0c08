"""The toy model's engine: text requests over the engine core, one iteration at a time.

Rules:

1. One call of ``step`` is one iteration: a stride of one step of the core. It returns the duration
   of the iteration and the tokens at its end; the caller waits and delivers them. The engine has
   no clock.
2. ``core`` defines scheduling, computation and caching. Blocks of answers are cached as well, so
   the next turn of a conversation finds them.
3. Every admitted request ends with exactly one last token or one ``cancel``.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from toyllm.blocks import TOKENS_PER_BLOCK, extend_chain
from toyllm.core import EngineConfig, EngineCore, Task
from toyllm.text import Words, count_tokens

if TYPE_CHECKING:
    from toyllm.settings import Settings


class RequestTooLargeError(ValueError):
    """A request that can never run on this engine."""


class FullError(RuntimeError):
    """The queue is full; another replica may accept the request."""


class Token(NamedTuple):
    """One token of one request."""

    key: int
    text: str
    position: int
    last: bool
    input_tokens: int
    cached_tokens: int


class Iteration(NamedTuple):
    """Result of one iteration."""

    seconds: float
    tokens: tuple[Token, ...]


class EngineLoad(NamedTuple):
    """Gauges of the engine, with the names of TensorRT-LLM."""

    active: int
    max_requests: int
    scheduled: int
    context: int
    waiting: int
    max_blocks: int
    free_blocks: int
    used_blocks: int
    reused_blocks: int
    iterations: int


class _Sequence(Task):
    """A request with its text."""

    __slots__ = ("_chain", "_text", "_words", "generated", "key")

    def __init__(self, index: int, key: int, prompt: str, max_tokens: int, version: str) -> None:
        self._chain: list[bytes] = []
        super().__init__(index, count_tokens(prompt), max_tokens, self._chain)
        self.key = key
        self.generated = 0
        self._text = prompt
        self._words = Words(version, prompt)

    def name_blocks(self) -> None:
        """Compute the names of the text's full blocks."""
        extend_chain(self._chain, self._text)

    def speak(self) -> Token:
        """Return the next token and append its text to the request's text."""
        index = self.generated
        text = self._words.token(index)
        self._text += text
        self.generated += 1
        self.name_blocks()
        return Token(
            key=self.key,
            text=text,
            position=index,
            last=self.generated == self.answer_tokens,
            input_tokens=self.prompt_tokens,
            cached_tokens=self.matched * TOKENS_PER_BLOCK,
        )


class Engine:
    """One model instance's scheduler and cache."""

    def __init__(self, settings: Settings, version: str) -> None:
        self._settings = settings
        self._version = version
        self._core: EngineCore[_Sequence] = EngineCore(config_of(settings))
        self._live: dict[int, _Sequence] = {}
        self._submitted = 0

    @property
    def idle(self) -> bool:
        """Return whether the engine has no requests."""
        return not self._live

    def submit(self, key: int, prompt: str, max_tokens: int) -> None:
        """Queue a request under ``key``, which must be unique among live requests.

        Raises:
            RequestTooLargeError: The request can never fit, or ``max_tokens`` is out of range.
            FullError: The queue is full.
        """
        limit = self._settings.max_tokens
        if not 1 <= max_tokens <= limit:
            raise RequestTooLargeError(f"max_tokens is {max_tokens}; ask for 1 to {limit}")
        sequence = _Sequence(self._submitted, key, prompt, max_tokens, self._version)
        blocks, capacity = self._core.need(sequence), self._core.cache.capacity
        if blocks > capacity:
            raise RequestTooLargeError(
                f"prompt and answer need {blocks} cache blocks of {TOKENS_PER_BLOCK} "
                f"tokens; this replica has {capacity}: shorten the prompt"
            )
        if self._core.queued >= self._settings.max_waiting:
            raise FullError(f"the queue is full: {self._core.queued} requests wait")
        sequence.name_blocks()
        self._core.arrive(sequence)
        self._live[key] = sequence
        self._submitted += 1

    def cancel(self, key: int) -> bool:
        """Drop a request; return ``False`` if the key is unknown or the request has ended."""
        sequence = self._live.pop(key, None)
        if sequence is None:
            return False
        self._core.cancel(sequence)
        return True

    def step(self) -> Iteration:
        """Run one iteration; an idle engine takes no time and returns no tokens."""
        core = self._core
        if not core.begin():
            return Iteration(0.0, ())
        core.cut(1)
        # Generate the texts first: the core caches the blocks that they fill.
        tokens = tuple(sequence.speak() for sequence in core.due())
        for sequence in core.end().finished:
            del self._live[sequence.key]
        return Iteration(core.step_s * self._settings.time_scale, tokens)

    def load(self) -> EngineLoad:
        """Return the current gauges."""
        core = self._core
        return EngineLoad(
            active=core.running + core.queued,
            max_requests=self._settings.max_running,
            scheduled=core.running,
            context=core.prefilling,
            waiting=core.queued,
            max_blocks=core.cache.capacity,
            free_blocks=core.cache.capacity - core.cache.used,
            used_blocks=core.cache.used,
            reused_blocks=core.cache.reused_total,
            iterations=core.steps_total,
        )


def config_of(settings: Settings) -> EngineConfig:
    """Return the core's configuration for the model's settings, without ``time_scale``."""
    prefill_us = settings.prefill_us_per_token
    return EngineConfig(
        prefill_rate=1e6 / prefill_us if prefill_us else inf,
        base_s=settings.decode_ms_base * 1e-3,
        per_request_s=settings.decode_ms_per_running * 1e-3,
        step_tokens=settings.chunk_tokens,
        max_running=settings.max_running,
        cache_blocks=settings.cache_blocks,
        block_tokens=TOKENS_PER_BLOCK,
        base_always=False,
        shared_budget=False,
        admit_ahead=True,
        cache_at_once=True,
        recompute_block=True,
    )
