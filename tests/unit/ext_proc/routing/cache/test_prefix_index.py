"""The prefix index: contiguous matches, recency, bounds, age, purge, memory."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.routing.cache.index_events import Inserted, Purged
from ext_proc.routing.cache.inserts import RECLAIM_BUDGET
from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.cache.prefix_uses import SharedUse, Use
from ext_proc.routing.values.pool import EndpointKey
from support.tries import tries

A, B, C = (EndpointKey(name, 1) for name in "abc")


def test_a_match_is_contiguous_from_the_root() -> None:
    """Depth counts the first blocks held without a gap, per endpoint."""
    index = PrefixIndex()
    index.insert(A, (1, 2, 3), 0.0)
    index.insert(B, (1, 9), 0.0)
    assert index.match_all((1, 2, 3, 4)) == {A: 3, B: 1}
    assert index.match_all((7, 2, 3)) == {}
    assert index.table.matched((1, 9, 3), B) == 2
    assert index.table.matched((1,), C) == 0
    assert index.match_all(()) == {}


def test_a_chain_longer_than_the_bound_keeps_its_root() -> None:
    """Of a long prompt only the first blocks are kept."""
    index = PrefixIndex(max_blocks=3)
    index.insert(A, tuple(range(10)), 0.0)
    assert index.match_all(tuple(range(10))) == {A: 3}
    assert index.held(A) == 3


def test_each_endpoint_has_its_own_bound() -> None:
    """An endpoint at its bound evicts no block of another."""
    index = PrefixIndex()
    index.limit(A, 2, 600.0)
    index.insert(B, (1, 2, 3), 0.0)
    index.insert(A, (1, 2, 3), 0.0)
    assert index.match_all((1, 2, 3)) == {A: 2, B: 3}


def test_a_lowered_bound_holds_at_once() -> None:
    """Lowering an endpoint's bound drops its oldest blocks at once."""
    index = PrefixIndex()
    index.insert(A, (1, 2, 3), 0.0)
    index.limit(A, 1, 600.0)
    assert (index.held(A), index.blocks) == (1, 1)


def test_expiry_is_bounded_per_call() -> None:
    """One call drops a bounded number of blocks; the next calls continue."""
    index = PrefixIndex(ttl_s=10.0)
    index.insert(A, tuple(range(3 * RECLAIM_BUDGET)), 0.0)
    index.insert(A, (-1,), 9.0)
    index.expire(11.0)
    assert index.held(A) == 2 * RECLAIM_BUDGET + 1
    index.expire(11.0)
    index.expire(11.0)
    assert index.held(A) == 1


def test_an_endpoint_without_a_young_block_is_forgotten_at_once() -> None:
    """After a long pause no stale block is matched, however many there are."""
    index = PrefixIndex(ttl_s=10.0)
    index.insert(A, tuple(range(5 * RECLAIM_BUDGET)), 0.0)
    index.expire(100.0)
    assert index.match_all((0,)) == {}


def test_a_purge_is_immediate_and_its_memory_follows() -> None:
    """A purged endpoint matches nothing; later calls free its memory."""
    index = PrefixIndex()
    index.insert(A, tuple(range(3 * RECLAIM_BUDGET)), 0.0)
    index.insert(B, (0, 1), 0.0)
    index.purge(A)
    assert index.match_all((0, 1, 2)) == {B: 2}
    assert index.held(A) == 0
    for _ in range(4):
        index.expire(0.0)
    assert index.blocks == 2
    index.insert(C, (0,), 1.0)
    assert index.match_all((0, 1)) == {B: 2, C: 1}


def test_forgetting_drops_the_bounds_too() -> None:
    """Forgetting an endpoint drops its bounds."""
    index = PrefixIndex(max_blocks=5)
    index.limit(A, 1, 1.0)
    index.forget(A)
    index.insert(A, (1, 2), 0.0)
    assert index.held(A) == 2


def test_a_repeated_hash_counts_once() -> None:
    """A hash that occurs twice in a chain is counted once and does not leak."""
    index = PrefixIndex(max_blocks=3)
    index.insert(A, (1, 1, 2), 0.0)
    index.insert(B, (1, 1), 0.0)
    assert (index.held(A), index.held(B)) == (2, 1)
    index.insert(A, (7, 8, 9), 1.0)
    assert (index.held(A), index.match_all((1,))) == (3, {B: 1})


def test_a_much_continued_prefix_becomes_shared() -> None:
    """A prefix counts as shared from endpoints times depth continuations on."""
    index = PrefixIndex()
    index.insert(A, (1, 2, 100), 0.0)
    assert index.table.shared_depth((1, 2, 100), 3, 3) == 0
    for number in range(6):
        assert index.table.shared_depth((1, 2, 999), 2, 3) == 0
        index.insert(A, (1, 2, 200 + number), 0.0)
    assert index.table.shared_depth((1, 2, 999), 2, 3) == 2
    assert index.table.shared_depth((1, 2, 999), 1, 3) == 0


def test_a_growing_conversation_is_never_shared() -> None:
    """A single continuation is no fork, however often it is repeated."""
    index = PrefixIndex()
    chain = tuple(range(40))
    for length in range(1, 41):
        index.insert(A, chain[:length], float(length))
        index.insert(B, chain[:length], float(length))
    assert index.table.shared_depth(chain, 40, 2) == 0


def test_repr_says_how_much_is_held() -> None:
    """The repr shows the numbers of blocks and endpoints."""
    index = PrefixIndex()
    index.insert(A, (1, 2), 0.0)
    assert repr(index) == "<PrefixIndex blocks=2 endpoints=1>"


@pytest.mark.parametrize("endpoints", [1, 64])
def test_a_block_takes_less_than_200_bytes(endpoints: int) -> None:
    """Conversations of 16 blocks take less than 200 bytes per block and endpoint."""
    rng = random.Random(0)
    keys = [EndpointKey(f"r{number}", 1) for number in range(endpoints)]
    index = PrefixIndex()
    tracemalloc.start()
    for number in range(1_500):
        chain = tuple(rng.getrandbits(63) for _ in range(16))
        index.insert(keys[number % endpoints], chain, float(number))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / 24_000 < 200


def test_touching_again_and_again_takes_no_memory() -> None:
    """The hashes kept for eviction are at most twice the blocks held, under any repetition."""
    index = PrefixIndex()
    rng = random.Random(0)
    shared = tuple(range(30))
    for number in range(500):
        own = tuple(rng.getrandbits(60) for _ in range(2)) if number % 50 == 0 else ()
        index.insert(A, shared + own, float(number))
    holder = index.table.holders[A]
    kept, use = 0, holder.kept.oldest
    while use is not None:
        kept += len(use.blocks)
        use = use.newer
    assert kept <= 2 * index.held(A)


# --- Against a simple reference model -----------------------------------------------------------

CHAINS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.sampled_from([A, B, C]), CHAINS, st.integers(0, 4)),
        st.tuples(st.just("purge"), st.sampled_from([A, B, C])),
        st.tuples(st.just("expire"), st.integers(0, 4)),
    ),
    max_size=40,
)
BOUND, TTL = 7, 6.0


def chained(path: list[int]) -> tuple[int, ...]:
    """Return chained hashes: each covers all blocks before it."""
    return tuple(int("1" + "".join(map(str, path[: depth + 1]))) for depth in range(len(path)))


class Model:
    """For each endpoint a dict of block to (insert, -position): the smallest is evicted first."""

    def __init__(self) -> None:
        self.held: dict[EndpointKey, dict[int, tuple[int, int]]] = {A: {}, B: {}, C: {}}
        self.at: dict[int, float] = {}

    def insert(self, key: EndpointKey, blocks: tuple[int, ...], step: int, now: float) -> None:
        held = self.held[key]
        self.at[step] = now
        for position, block in enumerate(blocks[:BOUND]):
            held[block] = (step, -position)
        while len(held) > BOUND:
            del held[min(held, key=held.__getitem__)]

    def depth(self, key: EndpointKey, blocks: tuple[int, ...]) -> int:
        for depth, block in enumerate(blocks):
            if block not in self.held[key]:
                return depth
        return len(blocks)

    def expire(self, now: float) -> None:
        for held in self.held.values():
            for block in [b for b, (step, _) in held.items() if self.at[step] < now - TTL]:
                del held[block]


@settings(max_examples=tries(100))
@given(STEPS)
def test_it_behaves_like_a_plain_lru(steps: list[tuple[object, ...]]) -> None:
    """After any steps, matches, bounds, recency and age equal those of the reference model."""
    index, model = PrefixIndex(max_blocks=BOUND, ttl_s=TTL), Model()
    now = 0.0
    seen: set[tuple[int, ...]] = set()
    for number, step in enumerate(steps):
        if step[0] == "insert":
            _, key, path, passed = step
            now += passed
            blocks = chained(path)
            seen.add(blocks)
            index.apply(Inserted(key, blocks, now))
            model.insert(key, blocks, number, now)
        elif step[0] == "purge":
            index.apply(Purged(step[1]))
            model.held[step[1]].clear()
        else:
            now += step[1] + 1.0  # expiry works once a second
            index.expire(now)
            model.expire(now)
        for key in (A, B, C):
            assert index.held(key) == len(model.held[key]) <= BOUND
        for blocks in seen:
            expected = {key: model.depth(key, blocks) for key in (A, B, C)}
            assert index.match_all(blocks) == {k: d for k, d in expected.items() if d}
            assert not blocks or index.table._match_long(blocks) == index.table.match(blocks)
    for key in (A, B, C):
        index.purge(key)
    index.expire(now)
    assert (index.blocks, len(index.table.forks), index.table._by_bit) == (0, 0, {})


@given(STEPS)
def test_a_parent_is_never_older_than_its_child(steps: list[tuple[object, ...]]) -> None:
    """Along any chain an endpoint's last touches get older towards the leaf."""
    index = PrefixIndex(max_blocks=BOUND)
    touched: set[tuple[EndpointKey, tuple[int, ...]]] = set()
    for number, step in enumerate(steps):
        if step[0] != "insert":
            continue
        _, key, path, _ = step
        index.insert(key, chained(path), float(number))
        touched.add((key, chained(path)))
        for holder_key, blocks in touched:
            bit = index.table.holders[holder_key].bit
            ages = [
                use.at for block in blocks if (use := index.table.owner(block, bit)) is not None
            ]
            entries = [index.table.entries.get(block) for block in blocks]
            assert all(isinstance(each, Use | SharedUse | None) for each in entries)
            held = index.table.matched(blocks, holder_key)
            assert ages[:held] == sorted(ages[:held], reverse=True)
