"""The prefix cache of the toy model."""

import pytest
from toyllm.blocks import CHARS_PER_BLOCK, BlockCache, extend_chain


def chain_of(*letters: str) -> list[bytes]:
    """Return the chain of a text with one block per letter."""
    chain: list[bytes] = []
    extend_chain(chain, "".join(letter * CHARS_PER_BLOCK for letter in letters))
    return chain


def fill(cache: BlockCache, *letters: str) -> None:
    """Run a request over these blocks to its end."""
    chain = chain_of(*letters)
    lease = cache.lease(chain, len(chain), len(chain))
    assert lease is not None
    cache.commit(lease, chain)
    cache.release(lease)


def cached(cache: BlockCache, *letters: str) -> int:
    """Return how many leading blocks the cache has, without keeping them."""
    chain = chain_of(*letters)
    lease = cache.lease(chain, len(chain), len(chain))
    assert lease is not None
    cache.release(lease)
    return lease.cached_blocks


def test_only_full_blocks_are_named():
    """A partial block can still change, so it has no name."""
    chain: list[bytes] = []
    extend_chain(chain, "a" * (2 * CHARS_PER_BLOCK - 1))
    assert len(chain) == 1


def test_equal_text_after_another_prefix_is_another_block():
    """A block's name covers all the text before it."""
    assert chain_of("a", "x")[1] != chain_of("b", "x")[1]


def test_a_block_computed_twice_at_once_is_kept_once():
    """The second of two concurrent computations releases its duplicate."""
    cache = BlockCache(8)
    chain = chain_of("a")
    leases = [cache.lease(chain, 1, 1) for _ in range(2)]
    for lease in leases:
        assert lease is not None
        cache.commit(lease, chain)
    assert cache.used == 1


def test_the_least_recently_used_goes_first():
    """Eviction starts with the least recently used block."""
    cache = BlockCache(3)
    fill(cache, "a")
    fill(cache, "b")
    fill(cache, "c")
    assert cached(cache, "a") == 1
    fill(cache, "d")
    assert [cached(cache, letter) for letter in "acd"] == [1, 1, 1]


def test_idle_blocks_that_are_about_to_be_reused_are_not_room():
    """Blocks that a request reuses are not evicted for the same request."""
    cache = BlockCache(4)
    fill(cache, "a", "b", "c", "d")
    chain = chain_of("a", "b", "c")
    assert cache.lease(chain, 3, 5) is None
    assert cache.idle == 4


def test_releasing_twice_raises_and_changes_nothing():
    """A lease settles once."""
    cache = BlockCache(4)
    lease = cache.lease(chain_of("a"), 0, 2)
    assert lease is not None
    cache.release(lease)
    with pytest.raises(ValueError, match="released before"):
        cache.release(lease)
    assert cache.free == 4


def test_outgrowing_the_reserved_blocks_raises():
    """Filling more blocks than reserved raises and evicts no other block."""
    cache = BlockCache(4)
    lease = cache.lease(chain_of("a"), 0, 1)
    assert lease is not None
    with pytest.raises(ValueError, match="than were reserved"):
        cache.commit(lease, chain_of("a", "b"))


def test_a_cache_without_blocks_is_refused():
    """Capacity 0 is an error."""
    with pytest.raises(ValueError, match="capacity is 0"):
        BlockCache(0)
