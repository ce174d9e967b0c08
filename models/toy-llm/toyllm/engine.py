"""The engine: continuous batching with chunked prefill over one prefix cache.

Laws:

* One call of ``step`` is one iteration of the engine. It says how long the iteration takes and
  which tokens come out at its end; whoever drives the engine waits and delivers. The engine
  itself knows no clock.
* A request waits, runs (prefill, then decode) and ends; first come, first admitted. It is
  admitted when a batch slot is free and all its blocks fit.
* Prefill advances by at most ``chunk_tokens`` per iteration over all requests, oldest first, so
  that running ones go on decoding. Its last chunk yields the first token.
* At least one token of a prompt is always computed, however much is cached (as in vLLM).
* Every request that was admitted ends by exactly one last token or one ``cancel``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from toyllm.blocks import TOKENS_PER_BLOCK, BlockCache, Lease, extend_chain
from toyllm.text import CHARS_PER_TOKEN, Words, count_tokens

if TYPE_CHECKING:
    from toyllm.settings import Settings


class TooLargeError(ValueError):
    """The request can never run here."""


class FullError(RuntimeError):
    """Too many requests wait already; another replica may have room."""


class Token(NamedTuple):
    """One token of one request."""

    key: int
    text: str
    position: int
    last: bool
    input_tokens: int
    cached_tokens: int


class Iteration(NamedTuple):
    """What one iteration did."""

    seconds: float
    tokens: tuple[Token, ...]


class Load(NamedTuple):
    """The engine's gauges, named as TensorRT-LLM names them."""

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


@dataclass(slots=True, eq=False)
class _Sequence:
    key: int
    prompt_tokens: int
    max_tokens: int
    text: str
    words: Words
    chain: list[bytes] = field(default_factory=list)
    lease: Lease | None = None
    prefilled: int = 0
    """Tokens of the prompt that are computed or were cached."""
    generated: int = 0

    @property
    def decoding(self) -> bool:
        return self.generated > 0

    @property
    def blocks(self) -> int:
        return -(-(self.prompt_tokens + self.max_tokens) // TOKENS_PER_BLOCK)


class Engine:
    """One model instance's scheduler and cache."""

    def __init__(self, settings: Settings, version: str) -> None:
        self._settings = settings
        self._version = version
        self._cache = BlockCache(settings.cache_blocks)
        self._waiting: deque[_Sequence] = deque()
        self._running: dict[int, _Sequence] = {}
        self._iterations = 0

    @property
    def idle(self) -> bool:
        """Tell whether there is nothing to do."""
        return not self._waiting and not self._running

    def submit(self, key: int, prompt: str, max_tokens: int) -> None:
        """Queue a request under a key of the caller's that no other live request has.

        Raises:
            TooLargeError: it can never fit, or asks for no or too many tokens.
            FullError: the queue is at its bound.
        """
        limit = self._settings.max_tokens
        if not 1 <= max_tokens <= limit:
            raise TooLargeError(f"max_tokens is {max_tokens}; ask for 1 to {limit}")
        sequence = _Sequence(
            key, count_tokens(prompt), max_tokens, prompt, Words(self._version, prompt)
        )
        if sequence.blocks > self._cache.capacity:
            raise TooLargeError(
                f"prompt and answer need {sequence.blocks} cache blocks of {TOKENS_PER_BLOCK} "
                f"tokens; this replica has {self._cache.capacity}: shorten the prompt"
            )
        if len(self._waiting) >= self._settings.max_waiting:
            raise FullError(f"{len(self._waiting)} requests wait already")
        extend_chain(sequence.chain, prompt)
        self._waiting.append(sequence)

    def cancel(self, key: int) -> bool:
        """Drop a request; ``False`` where it is not (or no longer) known."""
        sequence = self._running.get(key)
        if sequence is not None:
            self._end(sequence)
            return True
        for waiting in self._waiting:
            if waiting.key == key:
                self._waiting.remove(waiting)
                return True
        return False

    def step(self) -> Iteration:
        """Run one iteration; with nothing to do it takes no time and yields nothing."""
        self._admit()
        if not self._running:
            return Iteration(0.0, ())
        self._iterations += 1
        decoding = [sequence for sequence in self._running.values() if sequence.decoding]
        computed, completed = self._prefill()
        tokens = tuple(self._emit(sequence) for sequence in (*decoding, *completed))
        settings = self._settings
        seconds = computed * settings.prefill_us_per_token * 1e-6
        if decoding:
            per_running = settings.decode_ms_per_running * len(decoding)
            seconds += (settings.decode_ms_base + per_running) * 1e-3
        return Iteration(seconds * settings.time_scale, tokens)

    def load(self) -> Load:
        """Return the gauges of this moment."""
        scheduled = len(self._running)
        return Load(
            active=scheduled + len(self._waiting),
            max_requests=self._settings.max_running,
            scheduled=scheduled,
            context=sum(not sequence.decoding for sequence in self._running.values()),
            waiting=len(self._waiting),
            max_blocks=self._cache.capacity,
            free_blocks=self._cache.capacity - self._cache.used,
            used_blocks=self._cache.used,
            reused_blocks=self._cache.reused_total,
            iterations=self._iterations,
        )

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._settings.max_running:
            sequence = self._waiting[0]
            reusable = max(0, sequence.prompt_tokens - 1) // TOKENS_PER_BLOCK
            lease = self._cache.lease(sequence.chain, reusable, sequence.blocks)
            if lease is None:
                return
            self._waiting.popleft()
            sequence.lease = lease
            sequence.prefilled = lease.cached_blocks * TOKENS_PER_BLOCK
            self._running[sequence.key] = sequence

    def _prefill(self) -> tuple[int, list[_Sequence]]:
        budget = self._settings.chunk_tokens
        completed = []
        for sequence in self._running.values():
            if sequence.decoding:
                continue
            take = min(budget, sequence.prompt_tokens - sequence.prefilled)
            budget -= take
            sequence.prefilled += take
            self._commit(sequence, sequence.prefilled // TOKENS_PER_BLOCK)
            if sequence.prefilled == sequence.prompt_tokens:
                completed.append(sequence)
            if not budget:
                break
        return self._settings.chunk_tokens - budget, completed

    def _emit(self, sequence: _Sequence) -> Token:
        index = sequence.generated
        text = sequence.words.token(index)
        sequence.text += text
        sequence.generated += 1
        extend_chain(sequence.chain, sequence.text)
        self._commit(sequence, len(sequence.text) // (TOKENS_PER_BLOCK * CHARS_PER_TOKEN))
        lease = sequence.lease
        cached = lease.cached_blocks * TOKENS_PER_BLOCK if lease else 0
        last = sequence.generated == sequence.max_tokens
        if last:
            self._end(sequence)
        return Token(sequence.key, text, index, last, sequence.prompt_tokens, cached)

    def _commit(self, sequence: _Sequence, blocks: int) -> None:
        if sequence.lease is not None:
            self._cache.commit(sequence.lease, sequence.chain[:blocks])

    def _end(self, sequence: _Sequence) -> None:
        del self._running[sequence.key]
        if sequence.lease is not None:
            self._cache.release(sequence.lease)
