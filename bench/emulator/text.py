"""Prompts as text made of a trace's blocks, and what an engine makes of such text. Pure.

Rules:

1. Equal block ids give equal text, different ids different text; a salt gives another language,
   so that no run can profit from what an earlier one left behind.
2. A replica learns of blocks from the text alone: it cuts it into ``BLOCK_CHARS`` characters and
   hashes each piece with the piece before. Ids never travel.
3. How long the answer will be is said by the last words of the prompt, as a person would: a replica
   reads them, routers do not, and nobody gets it as a number in a field.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

import xxhash

from bench.simulate.workload import BLOCK_TOKENS

if TYPE_CHECKING:
    from bench.simulate.workload import Job

CHARS_PER_TOKEN: Final = 4
"""The usual ratio of English text and byte-pair tokens."""
BLOCK_CHARS: Final = BLOCK_TOKENS * CHARS_PER_TOKEN
DEFAULT_OUTPUT: Final = 16
"""Tokens of an answer that nobody asked a length of, as in OpenAI's completions."""
MAX_OUTPUT: Final = 100_000

_WISH: Final = re.compile(rb"Answer in (\d{1,6}) tokens\.\Z")
_WISH_BYTES: Final = 32


def block_text(block: int, salt: str) -> str:
    """Return the text of one full block."""
    name = f"{salt}/{block}".encode()
    return hashlib.shake_128(name).hexdigest(BLOCK_CHARS // 2)


def prompt_text(job: Job, salt: str) -> str:
    """Return a job's whole prompt: its blocks, and words that no other job has.

    It has the job's tokens, rounded up where the end would not hold the wish.
    """
    wish = f" Answer in {job.output_tokens} tokens."
    rest = max(0, job.input_tokens - len(job.blocks) * BLOCK_TOKENS) * CHARS_PER_TOKEN
    own = max(0, min(rest, BLOCK_CHARS - 1) - len(wish))
    name = f"{salt}/job/{job.index}".encode()
    tail = hashlib.shake_128(name).hexdigest(own // 2 + 1)[:own]
    return "".join([*(block_text(each, salt) for each in job.blocks), tail, wish])


def tokens_of(prompt: bytes) -> int:
    """Return how many tokens a prompt counts; at least 1."""
    return max(1, -(-len(prompt) // CHARS_PER_TOKEN))


def blocks_of(prompt: bytes) -> tuple[int, ...]:
    """Return the chained hashes of a prompt's full blocks."""
    found = []
    last = 0
    for start in range(0, len(prompt) - BLOCK_CHARS + 1, BLOCK_CHARS):
        last = xxhash.xxh3_64_intdigest(prompt[start : start + BLOCK_CHARS], seed=last)
        found.append(last)
    return tuple(found)


def wished_output(prompt: bytes) -> int | None:
    """Return how many tokens the end of a prompt asks for, ``None`` where it asks for none."""
    found = _WISH.search(prompt[-_WISH_BYTES:])
    return None if found is None else max(1, min(MAX_OUTPUT, int(found[1])))
