"""The prefix cache of the toy model."""

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
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


def test_a_chain_grows_without_renaming():
    """Appended text leaves the names of earlier blocks as they were."""
    chain = chain_of("a", "b")
    extend_chain(chain, "a" * CHARS_PER_BLOCK + "b" * CHARS_PER_BLOCK + "c" * CHARS_PER_BLOCK)
    assert chain == chain_of("a", "b", "c")


def test_equal_text_after_another_prefix_is_another_block():
    """A block's name covers all the text before it."""
    assert chain_of("a", "x")[1] != chain_of("b", "x")[1]


def test_a_finished_request_leaves_its_blocks_cached():
    """The next request with the same beginning finds them."""
    cache = BlockCache(8)
    fill(cache, "a", "b", "c")
    assert cached(cache, "a", "b", "x") == 2


def test_a_hole_ends_the_match():
    """A match ends at the first missing block."""
    cache = BlockCache(8)
    fill(cache, "a", "b", "c")
    assert cached(cache, "x", "b", "c") == 0


def test_no_more_is_reused_than_allowed():
    """``reusable`` limits the number of reused blocks."""
    cache = BlockCache(8)
    fill(cache, "a", "b")
    chain = chain_of("a", "b")
    lease = cache.lease(chain, 1, 3)
    assert lease is not None
    assert (lease.cached_blocks, lease.private) == (1, 2)


def test_shared_blocks_count_once():
    """Two running requests with one beginning hold one copy of it."""
    cache = BlockCache(8)
    fill(cache, "a", "b")
    chain = chain_of("a", "b")
    cache.lease(chain, 2, 3)
    cache.lease(chain, 2, 3)
    assert cache.used == 2 + 1 + 1


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


def test_a_leaf_goes_before_its_root():
    """An evicted root would make its still cached children unreachable."""
    cache = BlockCache(4)
    fill(cache, "a", "b", "c")
    fill(cache, "x", "y")
    assert cached(cache, "a", "b") == 2


def test_blocks_in_use_are_never_evicted():
    """A request that does not fit beside running ones has to wait."""
    cache = BlockCache(4)
    chain = chain_of("a", "b", "c")
    lease = cache.lease(chain, 0, 3)
    assert lease is not None
    cache.commit(lease, chain)
    assert cache.lease(chain_of("x", "y"), 2, 2) is None
    assert cache.used == 3


def test_idle_blocks_that_are_about_to_be_reused_are_not_room():
    """Blocks that a request reuses are not evicted for the same request."""
    cache = BlockCache(4)
    fill(cache, "a", "b", "c", "d")
    chain = chain_of("a", "b", "c")
    assert cache.lease(chain, 3, 5) is None
    assert cache.idle == 4


def test_reused_blocks_are_counted():
    """The gauge of reused blocks is the sum over all leases."""
    cache = BlockCache(8)
    fill(cache, "a", "b")
    cached(cache, "a", "b")
    cached(cache, "a", "x")
    assert cache.reused_total == 3


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


class CacheMachine(RuleBasedStateMachine):
    """Random requests; invariants of the cache hold."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(6)
        self.leases: list = []

    @rule(letters=st.lists(st.sampled_from("ab"), min_size=1, max_size=4), extra=st.integers(0, 2))
    def admit(self, letters, extra):
        """Admit a request where it fits."""
        chain = chain_of(*letters)
        before = (self.cache.used, self.cache.idle)
        lease = self.cache.lease(chain, len(chain) - 1, len(chain) + extra)
        if lease is None:
            assert (self.cache.used, self.cache.idle) == before
        else:
            self.leases.append((lease, chain))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def compute(self, data):
        """Fill a running request's next block."""
        lease, chain = data.draw(st.sampled_from(self.leases))
        self.cache.commit(lease, chain[: len(lease.held) + 1])

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def end(self, data):
        """End a running request at any point."""
        index = data.draw(st.integers(0, len(self.leases) - 1))
        self.cache.release(self.leases.pop(index)[0])

    @invariant()
    def blocks_add_up(self):
        """Used, idle and free blocks are the capacity; none is negative."""
        assert self.cache.used + self.cache.idle + self.cache.free == self.cache.capacity
        assert min(self.cache.used, self.cache.idle, self.cache.free) >= 0

    @invariant()
    def held_blocks_are_referenced(self):
        """What a running request has computed stays cached for it."""
        for lease, _ in self.leases:
            assert all(name in self.cache._references for name in lease.held)

    @invariant()
    def no_idle_block_without_its_parents(self):
        """Every cached block can be reached from its root."""
        present = set(self.cache._references) | set(self.cache._idle)
        for letters in ALL_TEXTS:
            chain = chain_of(*letters)
            found = [name in present for name in chain]
            assert found == sorted(found, reverse=True)


ALL_TEXTS = [(a, b, c, d) for a in "ab" for b in "ab" for c in "ab" for d in "ab"]
TestCacheMachine = CacheMachine.TestCase
