"""Prompt blocks: the chained hashes by which prefix affinity compares prompts.

The hash of a block covers all blocks before it, so two prompts share their first ``n`` hashes if,
and only if, they share their first ``n`` blocks; vLLM and TensorRT-LLM chain the hashes of their KV
blocks in the same way. Blocks are salted by model, adapter and cache salt, because a KV cache is
valid for one combination only. Only full blocks count: a growing prompt keeps all its hashes.

The root is seeded with a secret of the fleet, and each block with the hash before it, so an
outsider can neither compute the hashes of a prompt nor search for prompts whose hashes collide.
XXH3 is no message authentication code: the picker never shows hashes, because they could betray
the seed.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import chain as linked
from typing import TYPE_CHECKING, Any, Final

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ext_proc.routing.values.request import Features


MAX_BLOCKS: Final = 2048
"""Maximum blocks of one prompt; the rest of the prompt is ignored."""

_ROW: Final = 32
"""Blocks that are cut at once, which costs less than one by one."""


def prompt_blocks(
    features: Features, block_chars: int, limit: int = MAX_BLOCKS, *, seed: int = 0
) -> tuple[int, ...]:
    """Return the chained hashes of the prompt's full blocks, root first.

    Args:
        features: Features of the request; without a prompt there are no blocks.
        block_chars: Bytes of prompt in a block, at least 1.
        limit: Maximum hashes returned; the prompt beyond them is ignored.
        seed: The fleet's seed, below ``2 ** 64``.

    Returns:
        Signed 64-bit integers (XXH3), stable across processes and machines.
    """
    if features.prompt is None:
        return ()
    return chained(features, features.prompt, block_chars, limit, seed=seed)


def chained(
    features: Features, data: bytes, size: int, limit: int = MAX_BLOCKS, *, seed: int = 0
) -> tuple[int, ...]:
    """Return the chained hashes of the full blocks of ``data``, salted by the request.

    Args:
        features: Provides model, adapter and cache salt, which separate chains.
        data: Bytes to split into blocks.
        size: Bytes in a block, at least 1.
        limit: Maximum hashes returned.
        seed: The fleet's seed, below ``2 ** 64``.
    """
    if len(data) < size:
        return ()
    root = root_of(features.model, features.adapter, features.salt, seed)
    return continued(root, data, size, limit)


@lru_cache(maxsize=1024)
def root_of(model: str | None, adapter: str | None, salt: str | None, seed: int = 0) -> int:
    """Return the root hash of a chain, an unsigned 64-bit integer."""
    text = f"{model or ''}\0{adapter or ''}"
    if salt is not None:
        text = f"{text}\0{salt}"
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), seed)


def continued(chain: int, data: bytes, size: int, limit: int = MAX_BLOCKS) -> tuple[int, ...]:
    """Return the chained hashes of the full blocks of ``data`` that follow a root or a block.

    Args:
        chain: Hash of the root or the preceding block, unsigned.
        data: Bytes to split into blocks.
        size: Bytes in a block, at least 1.
        limit: Maximum hashes returned.
    """
    digest: Any = xxhash.xxh3_64_intdigest
    # `Any`: compiled code would convert an `int` to a native integer and back.
    last: Any = chain
    half: Any = 2**63
    whole: Any = 2**64
    count = min(len(data) // size, limit)
    left = count % _ROW
    end = (count - left) * size
    rows: Iterable[tuple[bytes, ...]] = (_cut(size, left).unpack_from(data, end),)
    if end:
        rows = linked(_cut(size, _ROW).iter_unpack(memoryview(data)[:end]), rows)
    return tuple(
        [
            last if (last := digest(piece, last)) < half else last - whole
            for row in rows
            for piece in row
        ]
    )


@lru_cache(maxsize=256)
def _cut(size: int, count: int) -> struct.Struct:
    """Return what cuts ``count`` blocks of ``size`` bytes."""
    return struct.Struct(f"{size}s" * count)
