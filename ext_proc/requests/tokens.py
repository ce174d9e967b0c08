"""Blocks of tokens: for prompts that are token ids, and for texts where a tokenizer is at hand.

An id counts as four little-endian bytes, so ids and a text that the tokenizer maps to the same ids
have the same blocks. The tokenizer is an argument; reading its file is the edge's work.

The text of a prompt that was cut is tokenised up to a place where the tokens of the whole text have
an end too: before the last white space that was read, since pre-tokenizers split words there. Where
there is none near the end (e.g. Chinese), the last ``DROPPED_TOKENS`` are left out instead, which
holds but for words of hundreds of characters; what is lost otherwise is a match of the last blocks.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ext_proc.requests.blocks import MAX_BLOCKS, chained, prompt_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.values.request import Features

ID_BYTES: Final = 4

CHARS_PER_TOKEN: Final = 4
"""The usual estimate where no tokenizer is known."""

MAX_TEXT_BYTES: Final = 65_536
"""Of a text only so much is tokenised: the picker stands still meanwhile, tens of milliseconds."""

DROPPED_TOKENS: Final = 16
TAIL_CHARS: Final = 1024
"""Characters at the end of a cut text in which white space is looked for."""

_LAST_SPACE: Final = re.compile(r"(?<=\S)\s+\S*$")


class Tokenizer(Protocol):
    """What turns a text into the ids that the model sees."""

    def encode(self, text: str) -> Sequence[int] | None:
        """Return the ids, special tokens included; ``None`` where the text has none."""


class Blocks(NamedTuple):
    """A prompt in blocks."""

    hashes: tuple[int, ...]
    """Chained hashes of the full blocks, root first; signed 64-bit integers."""
    block_tokens: float
    """Tokens in one block, estimated where blocks are of text."""
    tokens: int | None
    """Tokens of the whole prompt; ``None`` = unknown, since there are no ids or not all."""


def token_blocks(
    features: Features, block_chars: int, block_tokens: int, tokenizer: Tokenizer | None
) -> Blocks:
    """Cut a prompt into blocks: of tokens where these are known, of text otherwise.

    Args:
        features: The request; without a prompt it has no blocks.
        block_chars: Bytes of text in a block, at least 1.
        block_tokens: Tokens in a block, at least 1.
        tokenizer: That of the model; ``None`` = not known.
    """
    prompt = features.prompt
    if prompt is not None:
        if features.token_ids:
            whole = None if features.prompt_is_partial else len(prompt) // ID_BYTES
            hashes = chained(features, prompt, block_tokens * ID_BYTES)
            return Blocks(hashes, float(block_tokens), whole)
        if tokenizer is not None and (found := _tokenise(features, prompt, tokenizer)):
            ids, tokens = found
            ids = ids[: MAX_BLOCKS * block_tokens]
            packed = struct.pack(f"<{len(ids)}I", *ids)
            hashes = chained(features, packed, block_tokens * ID_BYTES)
            return Blocks(hashes, float(block_tokens), tokens)
    return Blocks(prompt_blocks(features, block_chars), block_chars / CHARS_PER_TOKEN, None)


def _tokenise(
    features: Features, prompt: bytes, tokenizer: Tokenizer
) -> tuple[Sequence[int], int | None] | None:
    """Return the ids that the whole prompt begins with, and how many it has in all."""
    cut = features.prompt_is_partial or len(prompt) > MAX_TEXT_BYTES
    text = prompt[:MAX_TEXT_BYTES].decode("utf-8", "replace")
    dropped = 0
    if cut:
        tail = _LAST_SPACE.search(text, max(0, len(text) - TAIL_CHARS))
        if tail is None:
            dropped = DROPPED_TOKENS
        else:
            text = text[: tail.start()]
    ids = tokenizer.encode(text)
    if ids is None:
        return None
    if not cut:
        return ids, len(ids)
    return ids[: max(0, len(ids) - dropped)], None
