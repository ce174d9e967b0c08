"""Prompt blocks: the chained hashes by which prefix affinity compares prompts.

The hash of a block covers all blocks before it, so two prompts share their first ``n`` hashes
exactly if they share their first ``n`` blocks; vLLM and TensorRT-LLM chain the hashes of their KV
blocks in the same way. Blocks are salted by model and adapter, as a KV cache is valid for one pair
only. Only full blocks count: a prompt that grows keeps all its hashes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from ext_proc.routing.types import Features

_SIGN = 1 << 63
_WRAP = 1 << 64


def prompt_blocks(features: Features, block_chars: int, limit: int = 2048) -> tuple[int, ...]:
    """Return the chained hashes of the prompt's full blocks, root first.

    Args:
        features: The request; without a prompt it has no blocks.
        block_chars: Bytes of prompt in a block, at least 1.
        limit: Most hashes returned; the prompt beyond them is not looked at.

    Returns:
        Signed 64-bit integers (XXH3), stable across processes and machines.
    """
    prompt = features.prompt
    if prompt is None or len(prompt) < block_chars:
        return ()
    digest = xxhash.xxh3_64_intdigest
    salt = f"{features.model or ''}\0{features.adapter or ''}"
    chain = digest(salt.encode("utf-8", "surrogatepass"))
    view = memoryview(prompt)
    count = min(len(prompt) // block_chars, limit)
    blocks = []
    for start in range(0, count * block_chars, block_chars):
        chain = digest(view[start : start + block_chars], chain)
        blocks.append(chain - _WRAP if chain >= _SIGN else chain)
    return tuple(blocks)
