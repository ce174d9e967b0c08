"""Holdings: the scale of text from what a replica's KV cache holds of the prompts in flight. Pure.

TensorRT-LLM's page in Triton counts no tokens, but tells the blocks of its KV cache in use. These
are the prompts of the running requests, of which a common prefix is held once, and their answers.

Rules:

1. A page tells something only if nothing is queued, and as many requests run as we have in flight.
2. Each request is taken to hold an answer of ``ANSWER_TOKENS`` and half a block of the engine.
   A page is used if prompts are most of what is held, so that this matters little.
3. A page weighs as many prompts as the ones before have not shown. It is used once these are half
   of those in flight, so that each prompt is looked at about twice.
4. The prompts of other workers and pickers are not known, so nothing is learned beside these.

Memory: at most ``MAX_HELD`` prompts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.values.reading import Reading

ANSWER_TOKENS: Final = 175.0
"""Half of a usual answer."""
MOSTLY: Final = 0.75
"""Least share of prompts in what is held."""
ALONE: Final = 0.9
MAX_HELD: Final = 1_024


class HeldPrompts(NamedTuple):
    """What a page tells."""

    pool: str
    size: float
    """Bytes of the prompts in flight; a common prefix counts once."""
    prompts: float
    """Prompts that no earlier page has shown."""
    tokens: float
    """Tokens of all these prompts."""


class Holdings:
    """The prompts in flight on one replica."""

    __slots__ = ("_fresh", "_held")

    def __init__(self) -> None:
        self._held: dict[int, tuple[str, int, Sequence[int]]] = {}
        """Pool, bytes and blocks by ticket id."""
        self._fresh = 0

    def sent(self, ticket: int, pool: str, size: int, blocks: Sequence[int]) -> None:
        """Note a prompt that was sent; ``size`` 0 = it is not text."""
        self._held[ticket] = (pool, size, blocks)
        self._fresh += 1
        if len(self._held) > MAX_HELD:
            del self._held[next(iter(self._held))]

    def ended(self, ticket: int) -> None:
        """Note that a request ended."""
        self._held.pop(ticket, None)

    def read(self, reading: Reading, block_bytes: Mapping[str, int]) -> HeldPrompts | None:
        """Return what a page tells, ``None`` if nothing (rules 1 and 2).

        Args:
            reading: The page, on which nothing is queued; it has ``kv_used`` and ``kv_blocks``.
            block_bytes: Bytes of a block of each pool's prompts.
        """
        running, count = reading.running, len(self._held)
        if not running or 2 * self._fresh < count or not count:
            return None
        if not ALONE <= running / count <= 1.0 / ALONE:
            return None
        block = float(reading.kv_block_tokens or 0)
        tokens = (reading.kv_used or 0.0) * (reading.kv_blocks or 0) * block
        left = tokens - running * (ANSWER_TOKENS + block / 2.0)
        if left < MOSTLY * tokens:
            return None
        pools = {pool for pool, _, _ in self._held.values()}
        if len(pools) != 1 or not all(size for _, size, _ in self._held.values()):
            return None
        pool = pools.pop()
        seen: set[int] = set()
        total, length = 0, block_bytes.get(pool, 0)
        for _, size, blocks in self._held.values():
            known = len(seen)
            seen.update(blocks)
            total += max(0, size - (len(blocks) - (len(seen) - known)) * length)
        prompts, self._fresh = min(self._fresh, count), 0
        return HeldPrompts(pool, float(total), float(prompts), left)
