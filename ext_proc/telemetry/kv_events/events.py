"""What an engine tells, whatever its encoding (vLLM, ``vllm/distributed/kv_events.py``)."""

from __future__ import annotations

from typing import NamedTuple


class BlockStored(NamedTuple):
    """Blocks that the engine holds from now on, one behind the other."""

    names: tuple[int, ...]
    """The engine's hashes, cut to ``exact_index.NAME_BITS``."""
    parent: int | None
    """The block before them; ``None`` = they begin a prompt."""
    token_ids: tuple[int, ...]
    """Of all of them, each below 2**32."""
    block_size: int
    """Tokens in each."""
    adapter: str | None = None
    extra_keys: tuple[tuple[object, ...], ...] | None = None
    """What else each block's content depends on; ``None`` = not told."""
    medium: str | None = None
    group: int | None = None
    """Of a model with several kinds of attention: which KV cache group."""
    kind: str | None = None
    """That group's kind of attention; ``None`` = not told."""


class BlockRemoved(NamedTuple):
    """Blocks that the engine gave up."""

    names: tuple[int, ...]
    medium: str | None = None
    group: int | None = None


class AllBlocksCleared(NamedTuple):
    """The engine's cache is empty."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared
