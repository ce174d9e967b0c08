"""Encoding of a trace's blocks as prompt text, and its decoding by an engine. Pure functions.

Rules:

1. Equal block ids give equal text, different ids different text; each salt gives different texts,
   so that no run benefits from the caches of an earlier one.
2. A replica derives blocks from the text alone: it splits the text into ``BLOCK_CHARS`` characters
   and hashes each piece with the previous hash. Ids are not sent.
3. The end of the prompt requests the length of the answer in words, as a user would. Replicas read
   it, routers do not, and no field contains it.
"""

from __future__ import annotations

import hashlib
import os
import re
from math import ceil
from typing import TYPE_CHECKING, Final

import xxhash

from bench.simulate.workload import BLOCK_TOKENS

if TYPE_CHECKING:
    from bench.simulate.workload import Job

CHARS_VARIABLE: Final = "TIDEGATE_BENCH_CHARS_PER_TOKEN"
CHARS_PER_TOKEN: Final = float(os.environ.get(CHARS_VARIABLE, "4"))
"""4 is typical of English text and byte-pair tokens. The processes of a run must agree on it."""
BLOCK_CHARS: Final = 2 * round(BLOCK_TOKENS * CHARS_PER_TOKEN / 2)
"""Even, because texts are made of bytes as two digits each."""
DEFAULT_OUTPUT: Final = 16
"""Default length of an answer, tokens, as in OpenAI's completions."""
MAX_OUTPUT: Final = 100_000

_WISH: Final = re.compile(rb"Answer in (\d{1,6}) tokens\.\Z")
_WISH_BYTES: Final = 32


def block_text(block: int, salt: str) -> str:
    """Return the text of one full block."""
    name = f"{salt}/{block}".encode()
    return hashlib.shake_128(name).hexdigest(BLOCK_CHARS // 2)


def prompt_text(job: Job, salt: str) -> str:
    """Return the whole prompt of a job: its blocks and unique text.

    It has the job's number of tokens, or more if the requested length would not fit at the end.
    """
    wish = f" Answer in {job.output_tokens} tokens."
    rest = int(max(0, job.input_tokens - len(job.blocks) * BLOCK_TOKENS) * CHARS_PER_TOKEN)
    own = max(0, min(rest, BLOCK_CHARS - 1) - len(wish))
    name = f"{salt}/job/{job.index}".encode()
    tail = hashlib.shake_128(name).hexdigest(own // 2 + 1)[:own]
    return "".join([*(block_text(each, salt) for each in job.blocks), tail, wish])


def tokens_of(prompt: bytes) -> int:
    """Return the number of tokens of a prompt; at least 1."""
    return max(1, ceil(len(prompt) / CHARS_PER_TOKEN))


def blocks_of(prompt: bytes) -> tuple[int, ...]:
    """Return the chained hashes of a prompt's full blocks."""
    found = []
    last = 0
    for start in range(0, len(prompt) - BLOCK_CHARS + 1, BLOCK_CHARS):
        last = xxhash.xxh3_64_intdigest(prompt[start : start + BLOCK_CHARS], seed=last)
        found.append(last)
    return tuple(found)


def wished_output(prompt: bytes) -> int | None:
    """Return the number of tokens requested at the end of a prompt, or ``None``."""
    found = _WISH.search(prompt[-_WISH_BYTES:])
    return None if found is None else max(1, min(MAX_OUTPUT, int(found[1])))
