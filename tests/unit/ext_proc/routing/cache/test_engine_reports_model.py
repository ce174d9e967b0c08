"""The exact index against a simple model of the engines' caches."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.routing.cache.index_events import (
    Cleared,
    IndexEvent,
    Inserted,
    Purged,
    Removed,
    Reporting,
    Stored,
)
from ext_proc.routing.cache.prefix_uses import SPECULATIVE_S
from ext_proc.routing.values.pool import EndpointKey
from support.prefix_caches import A, B, reporting
from support.tries import tries

PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=5)
ENGINES = st.integers(0, 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from([A, B]), PATHS),
        st.tuples(st.just("store"), ENGINES, PATHS, st.integers(0, 2)),
        st.tuples(st.just("remove"), ENGINES, PATHS),
        st.tuples(st.just("clear"), ENGINES),
        st.tuples(st.just("purge"), st.sampled_from([A, B])),
        st.tuples(st.just("wait"), st.integers(1, 4)),
        st.tuples(st.just("set_reporting"), st.sampled_from([True, False])),
    ),
    max_size=40,
)
USUAL_S = 9.0


def chained(path: list[int]) -> tuple[int, ...]:
    """Return chained hashes: each covers all blocks before it."""
    return tuple(int("1" + "".join(map(str, path[: depth + 1]))) for depth in range(len(path)))


def named(block: int) -> int:
    """Return the engine's name of a block."""
    return block * 7919


class Sent:
    """One dispatch, and whether its endpoint has reported some of it."""

    def __init__(self, at: float, *, told: bool) -> None:
        self.at, self.told = at, told


class Model:
    """Reference model: counters of copies by engine, and the time of each dispatch.

    Each method makes one step and returns its event, if any.
    """

    def __init__(self) -> None:
        self.engines: dict[int, Counter[int]] = {0: Counter(), 1: Counter()}
        self.sent: dict[EndpointKey, dict[int, Sent]] = {A: {}, B: {}}
        self.complete = True
        self.now = 0.0
        self.seen = {chained([0])}

    def reported(self) -> set[int]:
        return {block for held in self.engines.values() for block, n in held.items() if n > 0}

    def holds(self, key: EndpointKey) -> set[int]:
        return set(self.sent[key]) | (self.reported() if key == A else set())

    def depths(self, blocks: tuple[int, ...]) -> dict[EndpointKey, int]:
        found = {}
        for key in (A, B):
            held = self.holds(key)
            depth = next((d for d, block in enumerate(blocks) if block not in held), len(blocks))
            if depth:
                found[key] = depth
        return found

    def send(self, key: EndpointKey, path: list[int]) -> IndexEvent:
        blocks = chained(path)
        self.seen.add(blocks)
        reported = self.reported() if key == A else set()
        sent = Sent(self.now, told=bool(reported & set(blocks)))
        self.sent[key].update(dict.fromkeys(set(blocks) - reported, sent))
        return Inserted(key, blocks, self.now)

    def store(self, engine: int, path: list[int], reused: int) -> IndexEvent:
        blocks = chained(path)
        self.seen.add(blocks)
        held = self.engines[engine]
        reused = min(reused, len(blocks) - 1)
        if not held[blocks[reused - 1]]:  # a report after an unknown block is not passed on
            reused = 0
        new, parent = blocks[reused:], blocks[reused - 1] if reused else None
        for block in new:
            held[block] = held[block] + 1 if reused else max(1, held[block])
            if (sent := self.sent[A].pop(block, None)) is not None:
                sent.told = True
        return Stored(A, engine, tuple(map(named, new)), new, parent)

    def remove(self, engine: int, path: list[int]) -> IndexEvent:
        blocks = chained(path)
        for block in blocks:
            self.engines[engine][block] = max(0, self.engines[engine][block] - 1)
        return Removed(A, engine, tuple(map(named, blocks)))

    def clear(self, engine: int) -> IndexEvent:
        self.engines[engine].clear()
        if not +self.engines[1 - engine]:
            self.sent[A].clear()
        return Cleared(A, engine)

    def purge(self, key: EndpointKey) -> IndexEvent:
        self.sent[key].clear()
        if key == A:
            self.engines = {0: Counter(), 1: Counter()}
        return Purged(key)

    def set_reporting(self, complete: bool) -> IndexEvent:
        self.complete = complete
        return Reporting(A, complete)

    def wait(self, seconds: int) -> None:
        self.now += seconds + 1.0  # expiry works once a second
        for key, sent in self.sent.items():
            for block, one in list(sent.items()):
                short = key == A and self.complete and one.told
                if one.at < self.now - (SPECULATIVE_S if short else USUAL_S):
                    del sent[block]


@settings(max_examples=tries(130))
@given(STEPS)
def test_it_equals_the_engines_cache(steps: list[tuple]) -> None:
    """After any stores, removals, clears, purges and dispatches it equals the reference model.

    A second index that applied the same events is equal too.
    """
    model, indexes = Model(), (reporting(ttl_s=USUAL_S), reporting(ttl_s=USUAL_S))
    for kind, *rest in steps:
        event = getattr(model, kind)(*rest)
        for index in indexes:
            if event is None:
                index.expire(model.now)
            else:
                index.apply(event)
            for key in (A, B):
                assert index.held(key) == len(model.holds(key))
            for blocks in model.seen:
                assert index.match_all(blocks) == model.depths(blocks)
                assert index.table._match_long(blocks) == index.table.match(blocks)
    index = indexes[0]
    index.reports.set_reporting(A, complete=None)
    index.purge(B)
    index.expire(model.now)
    assert (index.blocks, len(index.table.forks), index.table._by_bit) == (0, 0, {})
