"""Capacity: how many blocks of the prefix index a replica's KV cache can hold. Pure.

Rules:

1. The size comes from the replica's own page: blocks of its KV cache times their size in tokens,
   summed over the models that it reports.
2. The pool's ``index_blocks`` is the maximum, and the bound where no page tells the size.
3. The size is rounded up to whole blocks of the index; at least ``LEAST_BLOCKS`` are kept.
4. Where several pools list a replica, the bound of its blocks is the largest of theirs.
5. An engine forgets a prompt when it needs the room, not after a time. So where the size is known,
   a block may have any age, unless the pool's ``index_ttl`` is shorter than usual.

An index that holds more than the engine predicts hits that do not happen: each is a prefill that
the price does not count, on the replica that is then wrongly preferred.
"""

from __future__ import annotations

from math import ceil, inf
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.routing.values.scale import BYTES_PER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.reading import Reading

TTL_S: Final = 600.0
"""The usual ``index_ttl``: a rule of thumb where the size of a cache is unknown."""
LEAST_BLOCKS: Final = 16
"""Minimum of ``index_blocks`` in the fleet file."""
MAX_TOLD: Final = 2**40
"""Maximum of either number on a page; a larger one counts as this."""


class IndexBounds(NamedTuple):
    """The bounds of a replica's blocks that its pools set."""

    max_blocks: int
    ttl_s: float
    block_tokens: float
    """Tokens of a block of the index; the fewest of its pools."""

    def with_pool(self, pool: Pool, bytes_per_token: float = BYTES_PER_TOKEN) -> IndexBounds:
        """Return the bounds with those of a further pool, whose text has this scale."""
        return IndexBounds(
            max(self.max_blocks, pool.index_blocks),
            max(self.ttl_s, pool.index_ttl_s),
            min(self.block_tokens, tokens_per_block(pool, bytes_per_token)),
        )

    def blocks(self, cache_tokens: float | None) -> int:
        """Return the bound for a cache of so many tokens; ``None`` = unknown."""
        if cache_tokens is None:
            return self.max_blocks
        held = ceil(cache_tokens / self.block_tokens)
        return min(self.max_blocks, max(LEAST_BLOCKS, held))

    def age_s(self, cache_tokens: float | None) -> float:
        """Return for how long a block is kept unused in a cache of so many tokens, seconds."""
        return self.ttl_s if cache_tokens is None or self.ttl_s < TTL_S else inf


NO_BOUNDS: Final = IndexBounds(0, 0.0, float("inf"))
"""The bounds of a replica that no pool lists."""


def tokens_per_block(pool: Pool, bytes_per_token: float = BYTES_PER_TOKEN) -> float:
    """Return the tokens of a block of a pool's prompts, estimated where they are cut as text."""
    return float(pool.block_tokens) if pool.tokenizer else pool.block_chars / bytes_per_token


def cache_tokens(readings: Iterable[Reading]) -> float | None:
    """Return the tokens that a replica's KV caches hold; ``None`` if no reading tells it."""
    told = 0
    for reading in readings:
        blocks, size = reading.kv_blocks, reading.kv_block_tokens
        if blocks and size and blocks > 0 and size > 0:
            told += min(blocks, MAX_TOLD) * min(size, MAX_TOLD)
    return float(told) if told > 0 else None
