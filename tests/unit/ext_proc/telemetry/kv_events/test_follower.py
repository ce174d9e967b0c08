"""An engine's batches in any order and with any gaps: the index equals the engine's cache."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.requests.blocks import chained
from ext_proc.routing.cache.index_events import Reporting
from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.request import Features, Form
from ext_proc.telemetry.kv_events.events import BlockRemoved, BlockStored
from ext_proc.telemetry.kv_events.follower import Follower
from ext_proc.telemetry.kv_events.translate import Translator
from support.kv_engine import KvCache

R1 = EndpointKey("r1", 1)
SIZE = 2


def blocks_of(tokens, size=SIZE, **features):
    """Return a prompt's blocks as for a request."""
    request = Features(Form.OPENAI, **{"model": "m", **features})
    return chained(request, struct.pack(f"<{len(tokens)}I", *tokens), size * 4)


class Made:
    """A follower of one engine, and its index."""

    def __init__(self, *, can_replay=True, models=frozenset({"m"}), size=SIZE):
        self.index = PrefixIndex()
        self.index.reports.set_reporting(R1, complete=False)
        self.completeness = []
        self.translator = Translator(
            R1, 0, model="m", models=models, block_tokens=size, block=self.index.reports.block
        )
        self.follower = Follower(
            self.translator, self.index.apply, self._complete, can_replay=can_replay
        )

    def _complete(self, complete):
        self.completeness.append(complete)
        self.index.apply(Reporting(R1, complete))

    def held(self, *prompts):
        return [self.index.table.matched(blocks_of(each), R1) for each in prompts]


@pytest.fixture
def made():
    return Made()


def published(cache, *prompts):
    """Return one batch per prompt."""
    found = []
    for prompt in prompts:
        cache.run(prompt)
        found.append(cache.batch())
    return found


A, B, C = (1, 2, 3, 4), (1, 2, 5, 6), (7, 8)


def test_batches_in_order_are_applied(made):
    """From batch 0 on all is known."""
    for number, batch in enumerate(published(KvCache(SIZE), A, B)):
        assert made.follower.live(number, batch)
    assert made.held(A, B, C) == [2, 2, 0]
    assert made.follower.complete
    assert made.completeness == [True]


def test_a_late_follower_asks_from_the_start(made):
    """Its first batch is not the engine's first: a replay closes the gap."""
    batches = published(KvCache(SIZE), A, B)
    assert not made.follower.live(1, batches[1])
    assert made.follower.missing == 0
    assert made.follower.replayed(0, batches[0], first=True)
    assert made.follower.replayed(1, batches[1], first=False)
    made.follower.replay_ended(empty=False)
    assert made.follower.live(1, batches[1])
    assert made.held(A, B) == [2, 2]
    assert made.follower.complete
    assert made.follower.counts["batches"] == 2


def test_a_gap_that_cannot_be_closed_costs_all(made):
    """The missed batches may have been removals."""
    batches = published(KvCache(SIZE), A, B, C)
    assert made.follower.live(0, batches[0])
    assert not made.follower.live(2, batches[2])
    assert made.follower.missing == 1
    made.follower.give_up(2)
    assert made.follower.live(2, batches[2])
    assert made.held(A, B, C) == [0, 0, 1]
    assert not made.follower.complete
    assert made.follower.counts["gaps"] == 1


def test_without_a_replay_address_a_gap_costs_all_at_once():
    """Without a replay address nothing is requested."""
    made = Made(can_replay=False)
    batches = published(KvCache(SIZE), A, B, C)
    assert made.follower.live(0, batches[0])
    assert made.follower.live(2, batches[2])
    assert made.held(A, C) == [0, 1]
    assert made.completeness == [True, False]


def test_a_replay_that_begins_too_late_is_no_whole_story(made):
    """The engine keeps only its last batches."""
    batches = published(KvCache(SIZE), A, C, B)
    assert not made.follower.live(2, batches[2])
    assert made.follower.replayed(1, batches[1], first=True)
    assert made.follower.replayed(2, batches[2], first=False)
    assert made.held(A, C) == [0, 1]
    assert not made.follower.complete
    assert made.follower.passed() == {"orphan": 1}


def test_a_hole_within_a_replay_is_asked_for_again(made):
    """Batches lost in transit are requested again."""
    batches = published(KvCache(SIZE), A, B, C)
    assert made.follower.replayed(0, batches[0], first=True)
    assert not made.follower.replayed(2, batches[2], first=False)
    assert made.follower.missing == 1
    assert made.follower.replayed(1, batches[1], first=True)
    assert made.follower.replayed(2, batches[2], first=False)
    assert made.held(A, B, C) == [2, 2, 1]
    made.follower.replay_ended(empty=False)
    assert made.follower.complete


def test_a_replay_is_no_whole_story_before_its_end(made):
    """What it has delivered may be removed again by what it has not."""
    batches = published(KvCache(SIZE), A, B, C)
    assert made.follower.replayed(0, batches[0], first=True)
    assert made.follower.replayed(1, batches[1], first=False)
    assert made.completeness == []
    assert made.follower.live(2, batches[2])
    assert made.completeness == [True]


def test_numbers_that_fall_are_another_process(made):
    """A restarted engine begins at 0; the cache content of the old process is discarded."""
    assert made.follower.live(0, published(KvCache(SIZE), A)[0])
    assert made.follower.live(0, published(KvCache(SIZE), C)[0])
    assert made.held(A, C) == [0, 1]
    assert made.follower.complete
    assert made.follower.counts["restarts"] == 1


def test_a_lost_connection_forgets_all(made):
    """The next batch may come from another process."""
    batches = published(KvCache(SIZE), A, B)
    assert made.follower.live(0, batches[0])
    made.follower.lost()
    assert made.held(A) == [0]
    assert made.completeness == [True, False]
    assert not made.follower.live(1, batches[1])


def test_an_engine_that_has_said_nothing_holds_nothing(made):
    """An empty replay is the whole history so far."""
    made.follower.replay_ended(empty=True)
    assert made.follower.complete
    assert made.follower.live(0, published(KvCache(SIZE), A)[0])
    assert made.follower.complete


def test_a_cleared_cache_is_known_whole_whatever_was_missed():
    """From there on the history is complete."""
    made = Made(can_replay=False)
    cache = KvCache(SIZE)
    published(cache, A)
    assert made.follower.live(7, published(cache, B)[0])
    assert not made.follower.complete
    cache.clear()
    cache.run(C)
    assert made.follower.live(8, cache.batch())
    assert made.follower.complete
    assert made.held(A, B, C) == [0, 0, 1]


def test_a_batch_that_cannot_be_read_costs_what_was_known(made):
    """It may have contained removals; the next one is applied after it."""
    cache = KvCache(SIZE)
    assert made.follower.live(0, published(cache, A)[0])
    assert made.follower.live(1, b"\xc1")
    assert made.held(A) == [0]
    assert not made.follower.complete
    assert "MessagePack" in made.follower.error
    assert made.follower.live(2, published(cache, C)[0])
    assert made.held(C) == [1]
    assert made.follower.counts["unreadable"] == 1


# --- Translation --------------------------------------------------------------------------------


def stored(tokens=A, **changes):
    names = tuple(range(100, 100 + len(tokens) // SIZE))
    return BlockStored(names, None, tokens, SIZE)._replace(**changes)


def matched(made, event, **features):
    change = made.translator.take(event)
    if change is not None:
        made.index.apply(change)
    return made.index.table.matched(blocks_of(A, **features), R1)


def test_adapters_and_salts_have_chains_of_their_own():
    """Blocks computed with an adapter or a salt serve only requests that have it."""
    made = Made(models=frozenset({"m", "sql"}))
    lora = stored(names=(1, 2), adapter="law", extra_keys=(("law",), ("law",)))
    assert matched(made, lora, adapter="law") == 2
    served = stored(names=(3, 4), adapter="sql", extra_keys=None)
    assert matched(made, served, model="sql") == 2
    salted = stored(names=(5, 6), extra_keys=(("tenant",), ()))
    assert matched(made, salted, salt="tenant") == 2
    both = stored(names=(7, 8), adapter="law", extra_keys=(("law", "tenant"), ("law",)))
    assert matched(made, both, adapter="law", salt="tenant") == 2
    assert made.index.table.matched(blocks_of(A), R1) == 0


def test_what_requests_cannot_tell_is_passed_over():
    """A block with a picture ends the known part of its prompt, and so do the blocks after it."""
    made = Made()
    assert matched(made, stored(extra_keys=((), ("picture", 5)))) == 1
    made = Made()
    assert matched(made, stored(extra_keys=(("picture", 5), ()))) == 0
    assert made.translator.passed == {"key": 2}


def test_other_media_and_windows_are_passed_over():
    """Only blocks that serve a whole prompt from GPU memory count, for removals too."""
    made = Made()
    assert matched(made, stored(medium="CPU")) == 0
    assert matched(made, stored(kind="sliding_window", group=1)) == 0
    assert matched(made, stored(kind="full_attention", group=0, medium="GPU")) == 2
    assert matched(made, BlockRemoved((101,), "CPU")) == 2
    assert matched(made, BlockRemoved((101,), "GPU", 1)) == 2
    assert matched(made, BlockRemoved((101,), "GPU", 0)) == 1


def test_another_block_size_is_told():
    """It can never match; the state and the log name it."""
    made = Made(size=4)
    assert matched(made, stored()) == 0
    assert made.follower.other_size == SIZE
    assert made.follower.passed() == {"size": 2}


# --- Against a real cache -----------------------------------------------------------------------

PROMPTS = st.lists(st.integers(0, 2), min_size=SIZE, max_size=5 * SIZE).map(tuple)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), PROMPTS, st.none() | st.integers(0, 4), st.booleans()),
        st.tuples(st.just("clear")),
        st.tuples(st.just("lose")),
        st.tuples(st.just("restart")),
        st.tuples(st.just("cut")),
    ),
    min_size=1,
    max_size=30,
)


class Story:
    """An engine with the batches that it can replay and the batches that get lost."""

    def __init__(self, made, buffer, **encoding):
        self.made, self.buffer, self.encoding = made, buffer, encoding
        self.lost = False
        self.restart()

    def restart(self):
        self.made.follower.lost()
        self.cache, self.log, self.number = KvCache(SIZE, 8, **self.encoding), [], 0
        self.uncounted = False
        """A copy was computed from the root; the index takes its removal for the block's."""

    def cut(self):
        self.made.follower.lost()

    def lose(self):
        self.lost = True

    def clear(self):
        self.cache.clear()
        self.publish()

    def run(self, prompt, reused, report):
        if 2 * (self.cache.holds(prompt) + len(prompt) // SIZE) > self.cache.capacity:
            reused = None
        held = self.cache.holds(prompt)
        if not self.cache.run(prompt, reused=reused, report=report) and held:
            self.uncounted = True
        self.publish()

    def publish(self):
        number, batch = self.number, self.cache.batch()
        self.log = [*self.log, (number, batch)][-self.buffer :]
        self.number += 1
        if self.lost:
            self.lost = False
            return
        if not self.made.follower.live(number, batch):
            self.replay()
            assert self.made.follower.live(number, batch)
        self.check()

    def replay(self):
        first, missing = True, self.made.follower.missing
        for each, payload in self.log:
            if each >= missing:
                assert self.made.follower.replayed(each, payload, first=first)
                first = False
        self.made.follower.replay_ended(empty=first)

    def check(self):
        holder = self.made.index.table.holders.get(R1)
        named = {} if holder is None else holder.reported.names
        believed = {block for names in named.values() for block in names.values()}
        there = {blocks_of(each)[-1] for each in self.cache.prompts()}
        assert believed <= there
        assert self.made.index.held(R1) == len(believed)
        if self.made.follower.complete and not self.uncounted:
            assert believed == there


@settings(max_examples=300)
@given(STEPS, st.booleans(), st.booleans(), st.integers(1, 40))
def test_the_index_equals_the_engines_cache(steps, maps, as_bytes, buffer):
    """With losses, gaps and restarts: a complete history equals the cache, any other is in it.

    Whatever clients send: equal prompts at one time, and requests whose reused blocks are reported.
    """
    story = Story(Made(), buffer, maps=maps, as_bytes=as_bytes)
    for kind, *rest in steps:
        getattr(story, kind)(*rest)


@given(st.lists(st.tuples(st.integers(0, 4), st.binary(max_size=40)), max_size=10))
def test_nothing_that_is_sent_raises(messages):
    """Any numbers with any bytes leave a working follower."""
    made = Made()
    for number, payload in messages:
        if not made.follower.live(number, payload):
            made.follower.give_up(number)
            assert made.follower.live(number, payload)
    made.follower.lost()
    batch = msgspec.msgpack.encode([0.0, [["BlockStored", [1, 2], None, list(A), SIZE, None]]])
    assert made.follower.live(0, batch)
    assert made.held(A) == [2]
