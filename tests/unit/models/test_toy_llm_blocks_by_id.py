"""The block cache with a trace's ids: its rules hold under any order of calls."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from toyllm.blocks import BlockCache, BlockLease


def admit(cache: BlockCache, blocks: tuple[int, ...], private: int = 0) -> BlockLease:
    """Admit a prompt of full blocks with an answer of ``private`` blocks; there must be room."""
    lease = cache.lease(blocks, len(blocks), len(blocks) + private)
    assert lease is not None
    return lease


def run(cache: BlockCache, *blocks: int) -> int:
    """Admit, compute and end one prompt; return how many blocks were held."""
    matched = cache.match(blocks)
    lease = admit(cache, blocks)
    cache.commit(lease, blocks)
    cache.release(lease)
    assert lease.cached_blocks == matched
    return matched


def test_a_prompt_is_held_after_its_run() -> None:
    """A repeated prompt matches wholly, another one up to the fork."""
    cache = BlockCache(10)
    assert run(cache, 1, 2, 3) == 0
    assert run(cache, 1, 2, 3) == 3
    assert cache.match((1, 2, 9)) == 2
    assert cache.match((2, 3)) == 2  # ids stand for whole prefixes: the caller keeps them apart
    assert repr(cache) == "<BlockCache 0+3 of 10>"


def test_the_least_recent_leaf_leaves_first() -> None:
    """Room is made from the oldest prompt's leaf towards its root."""
    cache = BlockCache(5)
    run(cache, 1, 2, 3)
    run(cache, 4, 5, 6)
    assert cache.match((1, 2, 3)) == 2
    assert cache.match((4, 5, 6)) == 3


def test_blocks_match_only_once_computed() -> None:
    """Reserved blocks are not matched."""
    cache = BlockCache(5)
    lease = admit(cache, (1, 2), 1)
    assert (cache.match((1, 2)), cache.used, cache.has(1)) == (0, 3, False)
    cache.commit(lease, (1, 2))
    assert (cache.match((1, 2)), cache.used, cache.has(1)) == (2, 3, True)


def test_what_does_not_fit_changes_nothing() -> None:
    """A request that does not fit is refused; used blocks are not evicted for it."""
    cache = BlockCache(4)
    cache.commit(admit(cache, (1, 2)), (1, 2))
    assert cache.lease((3, 4, 5), 3, 3) is None
    assert (cache.used, cache.match((1, 2))) == (2, 2)


class CacheMachine(RuleBasedStateMachine):
    """Requests that overlap in time and share prefixes."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(12)
        self.open: list[tuple[tuple[int, ...], BlockLease, bool]] = []

    @rule(family=st.integers(0, 3), depth=st.integers(0, 6), private=st.integers(0, 4))
    def admit(self, family: int, depth: int, private: int) -> None:
        """Begin a request of one of four families."""
        blocks = tuple(family * 100 + number for number in range(depth))
        before = (self.cache.used, self.cache.held)
        lease = self.cache.lease(blocks, len(blocks), len(blocks) + private)
        if lease is not None:
            self.open.append((blocks, lease, False))
        else:
            assert (self.cache.used, self.cache.held) == before

    @rule(place=st.integers(0, 20))
    def go_on(self, place: int) -> None:
        """Commit a request, or end it if it was."""
        if not self.open:
            return
        blocks, lease, done = self.open.pop(place % len(self.open))
        if done:
            self.cache.release(lease)
        else:
            self.cache.commit(lease, blocks)
            self.open.append((blocks, lease, True))

    @rule()
    def clear(self) -> None:
        """Restart."""
        self.cache.clear()
        self.open.clear()

    @invariant()
    def within_capacity(self) -> None:
        """Nothing is ever above the capacity, and nothing is negative."""
        assert self.cache._private >= 0
        assert self.cache.held + self.cache._private <= self.cache.capacity

    @invariant()
    def committed_blocks_stay(self) -> None:
        """What a running request has computed is held."""
        for blocks, _, done in self.open:
            if done:
                assert self.cache.match(blocks) == len(blocks)

    @invariant()
    def idle_means_unused(self) -> None:
        """Without running requests nothing is in use."""
        if not self.open:
            assert self.cache.used == 0


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, deadline=None)
