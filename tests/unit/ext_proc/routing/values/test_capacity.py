"""The size of a replica's KV cache, as its page tells it, in blocks of the index."""

from __future__ import annotations

from math import inf

from hypothesis import example, given
from hypothesis import strategies as st

from ext_proc.routing.values.capacity import LEAST_BLOCKS, NO_BOUNDS, cache_tokens
from ext_proc.routing.values.pool import Pool
from ext_proc.routing.values.reading import Reading


def page(blocks: int | None, size: int | None, model: str = "m") -> Reading:
    """Return a reading that tells a cache's size."""
    return Reading(at=0.0, model=model, kv_blocks=blocks, kv_block_tokens=size)


def test_the_sizes_of_all_models_count() -> None:
    """Models of one replica have caches of their own; half of a size is none."""
    assert cache_tokens([page(100, 16), page(50, 64, "n"), page(7, None, "o")]) == 4800.0
    assert cache_tokens([page(None, 16), page(100, None)]) is None
    assert cache_tokens([]) is None


def test_the_size_becomes_blocks_of_the_index() -> None:
    """1,500 blocks of 512 tokens are 12,000 blocks of the usual 256 bytes."""
    bounds = NO_BOUNDS.with_pool(Pool("llm"))
    assert bounds.blocks(1500 * 512.0) == 12_000
    assert bounds.blocks(65.0 * 64 + 1) == 66
    assert bounds.blocks(None) == 100_000


def test_blocks_of_tokens_count_where_prompts_are_tokenised() -> None:
    """With a tokenizer, a block has the tokens that the pool says."""
    pool = Pool("llm", tokenizer="t.json", block_tokens=16, block_chars=4096)
    assert NO_BOUNDS.with_pool(pool).blocks(1600.0) == 100
    assert NO_BOUNDS.with_pool(Pool("llm", block_chars=4096)).blocks(102_400.0) == 100


def test_the_widest_of_several_pools_holds() -> None:
    """A replica in two pools keeps what either needs."""
    wide = Pool("wide", index_blocks=500, index_ttl_s=10.0, block_chars=512)
    bounds = NO_BOUNDS.with_pool(Pool("llm", index_blocks=200, index_ttl_s=60.0)).with_pool(wide)
    assert bounds == (500, 60.0, 64.0)


def test_a_prompt_has_no_age_where_the_size_of_the_cache_is_known() -> None:
    """Engines forget it when they need the room; a pool may say that it is forgotten earlier."""
    usual = NO_BOUNDS.with_pool(Pool("llm"))
    assert (usual.age_s(None), usual.age_s(1_000.0)) == (600.0, inf)
    short = NO_BOUNDS.with_pool(Pool("llm", index_ttl_s=60.0))
    assert (short.age_s(None), short.age_s(1_000.0)) == (60.0, 60.0)


@given(st.one_of(st.none(), st.integers(-(10**400), 10**400)), st.integers(-1, 10**400))
@example(-(10**400), -1)
def test_no_page_leaves_the_bounds(blocks: int | None, size: int) -> None:
    """Whatever a page says, the bound is at least the minimum and at most the setting."""
    told = cache_tokens([page(blocks, size)])
    assert LEAST_BLOCKS <= NO_BOUNDS.with_pool(Pool("llm")).blocks(told) <= 100_000
