"""Encoding of blocks as prompts, and decoding by an emulated replica."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.emulator.text import (
    CHARS_PER_TOKEN,
    blocks_of,
    prompt_text,
    tokens_of,
    wished_output,
)
from bench.simulate.workload import BLOCK_TOKENS, Job


def job(blocks: tuple[int, ...], rest: int = 100, output: int = 7, index: int = 0) -> Job:
    """Return a job with these full blocks and ``rest`` more tokens."""
    return Job(index, 0.0, len(blocks) * BLOCK_TOKENS + rest, output, blocks)


def test_equal_ids_give_equal_blocks_and_nothing_else_does() -> None:
    """Two prompts share exactly the hashes of the blocks that their jobs share."""
    one = blocks_of(prompt_text(job((1, 2, 3)), "a").encode())
    other = blocks_of(prompt_text(job((1, 2, 4), index=1), "a").encode())
    assert len(one) == len(other) == 3
    assert one[:2] == other[:2]
    assert one[2] != other[2]


def test_a_hash_stands_for_all_before_it() -> None:
    """The same text after another prefix has another hash."""
    one = blocks_of(prompt_text(job((1, 2)), "a").encode())
    other = blocks_of(prompt_text(job((3, 2)), "a").encode())
    assert one[1] != other[1]


@given(st.lists(st.integers(), max_size=3), st.integers(0, 511), st.integers(1, 9_999))
def test_a_prompt_has_its_jobs_tokens_and_wish(blocks: list[int], rest: int, output: int) -> None:
    """Token count, full blocks and answer length are preserved in the text."""
    wanted = job(tuple(blocks), rest, output)
    prompt = prompt_text(wanted, "s").encode()
    assert len(blocks_of(prompt)) == len(blocks)
    assert wished_output(prompt) == output
    least = -(-len(f" Answer in {output} tokens.") // CHARS_PER_TOKEN)
    assert tokens_of(prompt) == len(blocks) * BLOCK_TOKENS + max(rest, least)
