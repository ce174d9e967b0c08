"""Events of an engine, independent of their encoding (vLLM, ``vllm/distributed/kv_events.py``)."""

from __future__ import annotations

from typing import NamedTuple


class BlockStored(NamedTuple):
    """Blocks that the engine has added to its cache, each the successor of the one before."""

    names: tuple[int, ...]
    """The engine's hashes, truncated to ``index_events.NAME_BITS``."""
    parent: int | None
    """The block before the first; ``None`` = the blocks begin a prompt."""
    token_ids: tuple[int, ...]
    """Tokens of all blocks, each below 2**32."""
    block_size: int
    """Tokens in each block."""
    adapter: str | None = None
    extra_keys: tuple[tuple[object, ...], ...] | None = None
    """Further inputs of each block's content; ``None`` = not reported."""
    medium: str | None = None
    group: int | None = None
    """KV cache group, for models with several kinds of attention."""
    kind: str | None = None
    """The group's kind of attention; ``None`` = not reported."""


class BlockRemoved(NamedTuple):
    """Blocks that the engine has evicted."""

    names: tuple[int, ...]
    medium: str | None = None
    group: int | None = None


class AllBlocksCleared(NamedTuple):
    """The engine's cache is empty."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared
