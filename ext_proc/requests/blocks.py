"""Prompt blocks: the chained hashes by which prefix affinity compares prompts.

The hash of a block covers all blocks before it, so two prompts share their first ``n`` hashes if,
and only if, they share their first ``n`` blocks; vLLM and TensorRT-LLM chain the hashes of their KV
blocks in the same way. Blocks are salted by model, adapter and cache salt, because a KV cache is
valid for one combination only. Only full blocks count: a growing prompt keeps all its hashes.

The root is seeded with a secret of the fleet, and each block with the hash before it, so an
outsider can neither compute the hashes of a prompt nor search for prompts whose hashes collide.
XXH3 is no message authentication code: the picker never shows hashes, because they could betray
the seed.

Blocks are of tokens where a prompt has token ids or a tokenizer is available, else of text. An id
is encoded as four little-endian bytes, so ids and a text that the tokenizer maps to the same ids
have the same blocks. The tokenizer is an argument; the caller reads its file.

A prompt that is cut off is tokenized up to a position where the tokens of the whole text have a
boundary too: before the last white space that was read, because pre-tokenizers split words there.
If there is none near the end (e.g. Chinese), the last ``DROPPED_TOKENS`` are dropped instead. This
holds except for words of hundreds of characters; there the last blocks do not match.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from itertools import chain as linked
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import xxhash

from ext_proc.routing.values.request import Truncation
from ext_proc.routing.values.scale import BYTES_PER_TOKEN, ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


MAX_TEXT_BYTES: Final = 65_536
"""Maximum bytes of a text that are tokenized: tokenizing blocks the picker for tens of ms."""

DROPPED_TOKENS: Final = 16
TAIL_CHARS: Final = 1024
"""Characters at the end of a cut text that are searched for white space."""

_LAST_SPACE: Final = re.compile(r"(?<=\S)\s+\S*$")


class Tokenizer(Protocol):
    """Maps a text to the ids that the model sees."""

    def encode(self, text: str, *, special: bool = True) -> Sequence[int] | None:
        """Return the ids, by default with special tokens; ``None`` if the text has none."""


class ChatBlocks(Protocol):
    """Knows the tokens of chats."""

    def blocks(self, features: Features, block_tokens: int, seed: int) -> Blocks | None:
        """Return the blocks of a chat; ``None`` = by its canonical bytes."""


class Blocks(NamedTuple):
    """A prompt in blocks."""

    hashes: tuple[int, ...]
    """Chained hashes of the full blocks, root first; signed 64-bit integers."""
    block_tokens: float
    """Tokens in one block, estimated for blocks of text."""
    tokens: int | None
    """Tokens of the whole prompt, estimated beyond ``MAX_TEXT_BYTES``; ``None`` = unknown: there
    are no ids, or not all of the prompt was read."""
    bytes_per_token: float = ID_BYTES
    """Bytes of the canonical prompt for each token, as far as its tokens are not counted."""
    batch: tuple[tuple[int, ...], ...] = ()
    """Of a batch the blocks of each prompt; ``hashes`` are then all of them, once each."""
    chat: bool = False
    """``tokens`` are all of a chat's, by the pool's template: its engine must count as many."""


def token_blocks(
    features: Features,
    block_chars: int,
    block_tokens: int,
    tokenizer: Tokenizer | None,
    seed: int = 0,
    chats: ChatBlocks | None = None,
    bytes_per_token: float = BYTES_PER_TOKEN,
) -> Blocks:
    """Split a prompt into blocks: of tokens if these are known, else of text.

    Args:
        features: Features of the request; without a prompt there are no blocks.
        block_chars: Bytes of text in a block, at least 1.
        block_tokens: Tokens in a block, at least 1.
        tokenizer: The model's tokenizer; ``None`` = unknown.
        seed: The fleet's seed, below ``2 ** 64``.
        chats: Knows the tokens of the pool's chats; ``None`` = unknown.
        bytes_per_token: The scale of the text (``routing.scales``).
    """
    if features.chat is not None:
        found = None if chats is None else chats.blocks(features, block_tokens, seed)
        features.chat = None  # the body is not kept
        if found is not None:
            return found
    prompt = features.prompt
    if features.spans and prompt is not None:
        return _batch(features, prompt, block_chars, block_tokens, tokenizer, seed, bytes_per_token)
    if prompt is not None:
        if features.truncation is not None and (features.token_ids or tokenizer is not None):
            return _truncated(features, prompt, block_tokens, tokenizer, seed, bytes_per_token)
        if features.token_ids:
            whole = None if features.prompt_is_partial else len(prompt) // ID_BYTES
            hashes = chained(features, prompt, block_tokens * ID_BYTES, seed=seed)
            return Blocks(hashes, float(block_tokens), whole)
        if tokenizer is not None and (known := _tokenise(features, prompt, tokenizer)):
            ids, tokens = known
            ids = ids[: MAX_BLOCKS * block_tokens]
            packed = struct.pack(f"<{len(ids)}I", *ids)
            hashes = chained(features, packed, block_tokens * ID_BYTES, seed=seed)
            return Blocks(hashes, float(block_tokens), tokens)
    hashes = () if prompt is None else chained(features, prompt, block_chars, seed=seed)
    return Blocks(hashes, block_chars / bytes_per_token, None, bytes_per_token)


def _batch(
    features: Features,
    prompt: bytes,
    block_chars: int,
    block_tokens: int,
    tokenizer: Tokenizer | None,
    seed: int,
    bytes_per_token: float,
) -> Blocks:
    """Return the blocks of a batch, each prompt's from its own root.

    At most ``MAX_BLOCKS`` in all, and ``MAX_TEXT_BYTES`` of texts are tokenized.
    """
    found: dict[int, None] = {}
    chains: list[tuple[int, ...]] = []
    tokens: int | None = 0
    size, scale = block_chars / bytes_per_token, bytes_per_token
    spans, last = features.spans, features.spans[-1]
    for begin, end in spans:
        if len(found) >= MAX_BLOCKS or (tokenizer is not None and begin > MAX_TEXT_BYTES):
            tokens = None
            break
        partial = features.prompt_is_partial and (begin, end) == last
        one = features.changed(spans=(), prompt=prompt[begin:end], prompt_is_partial=partial)
        made = token_blocks(
            one, block_chars, block_tokens, tokenizer, seed, bytes_per_token=bytes_per_token
        )
        chain = made.hashes[: MAX_BLOCKS - len(found)]
        if chain:
            chains.append(chain)
            found.update(dict.fromkeys(chain))
        size, scale = made.block_tokens, made.bytes_per_token
        tokens = None if tokens is None or made.tokens is None else tokens + made.tokens
    if last[1] < len(prompt):
        tokens = None
    return Blocks(tuple(found), size, tokens, scale, tuple(chains) if len(chains) > 1 else ())


def _tokenise(
    features: Features, prompt: bytes, tokenizer: Tokenizer
) -> tuple[Sequence[int], int | None] | None:
    """Return ids that the whole prompt starts with, and the total number of its ids if known."""
    cut = features.prompt_is_partial or len(prompt) > MAX_TEXT_BYTES
    text = prompt[:MAX_TEXT_BYTES].decode("utf-8", "replace")
    dropped = 0
    if cut:
        tail = _LAST_SPACE.search(text, max(0, len(text) - TAIL_CHARS))
        if tail is None:
            dropped = DROPPED_TOKENS
        else:
            text = text[: tail.start()]
    ids = tokenizer.encode(text, special=False) if features.plain_text else tokenizer.encode(text)
    if ids is None:
        return None
    if not cut:
        return ids, len(ids)
    whole = None
    if not features.prompt_is_partial:
        whole = len(ids) * len(prompt) // max(1, len(text.encode("utf-8", "replace")))
    return ids[: max(0, len(ids) - dropped)], whole


def _truncated(
    features: Features,
    prompt: bytes,
    block_tokens: int,
    tokenizer: Tokenizer | None,
    seed: int,
    bytes_per_token: float,
) -> Blocks:
    """Return the blocks of what the engine keeps of a prompt; none where that is not known."""
    most, left, whole = features.truncation or Truncation(1, left=True, whole=True)
    ids: Sequence[int] | None = None
    total: int | None = None
    if features.token_ids:
        if not features.prompt_is_partial:
            total = len(prompt) // ID_BYTES
            ids = struct.unpack(f"<{total}I", prompt[: total * ID_BYTES])
    elif tokenizer is not None and (found := _tokenise(features, prompt, tokenizer)):
        ids, total = found
        if features.prompt_is_partial or len(prompt) > MAX_TEXT_BYTES:
            ids = None
    if total is None:
        total = int(len(prompt) / (ID_BYTES if features.token_ids else bytes_per_token))
    tokens = min(total, most)
    if ids is None:
        return Blocks((), float(block_tokens), tokens)
    if len(ids) > most:
        special = () if whole or tokenizer is None or features.plain_text else tokenizer.encode("")
        head = min(len(special or ()), most)
        ids = (*ids[:head], *ids[len(ids) - most + head :]) if left else ids[:most]
    packed = struct.pack(f"<{len(ids)}I", *ids)
    hashes = chained(features, packed, block_tokens * ID_BYTES, seed=seed)
    return Blocks(hashes, float(block_tokens), tokens)
