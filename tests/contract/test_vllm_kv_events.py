"""KV events recorded from vLLM 0.32.0: the index holds what the engine did, by its own counters."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest

from ext_proc.requests.blocks import chained
from ext_proc.routing.cache.index_events import Removed, Reporting
from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.request import Features, Form
from ext_proc.telemetry.kv_events.decode import decode
from ext_proc.telemetry.kv_events.follower import Follower
from ext_proc.telemetry.kv_events.translate import Translator

FOLDER = Path(__file__).parent / "fixtures" / "vllm-0.32.0"
PAGE = (FOLDER / "metrics.txt").read_text()
MESSAGES = [json.loads(line) for line in (FOLDER / "kv_events.jsonl").read_text().splitlines()]
PAYLOADS = [bytes.fromhex(each["payload_hex"]) for each in MESSAGES]
PROMPTS = [decode(each).events[0].token_ids for each in PAYLOADS]
SIZE = 32
R1 = EndpointKey("r1", 1)


def blocks_of(tokens):
    """Return a prompt's blocks as those of a request for ``tiny`` are made."""
    asked = Features(Form.OPENAI, model="tiny")
    return chained(asked, struct.pack(f"<{len(tokens)}I", *tokens), SIZE * 4)


def counter(name):
    return float(re.search(rf"^{name}{{[^}}]*}} (\S+)$", PAGE, re.MULTILINE)[1])


@pytest.fixture
def index():
    """An index that has followed the recorded engine."""
    index = PrefixIndex()
    translator = Translator(
        R1,
        0,
        model="tiny",
        models=frozenset({"tiny"}),
        block_tokens=SIZE,
        block=index.reports.block,
    )
    follower = Follower(
        translator,
        index.apply,
        lambda complete: index.apply(Reporting(R1, complete)),
        can_replay=True,
    )
    index.apply(Reporting(R1, complete=False))
    for message, payload in zip(MESSAGES, PAYLOADS, strict=True):
        assert follower.live(message["seq"], payload)
    assert follower.complete
    assert not follower.passed()
    assert not follower.counts["unknown"]
    return index


def test_the_recording_is_what_the_page_says():
    """Block size and cached prompts are those of the recorded engine."""
    assert f'block_size="{SIZE}"' in PAGE
    assert [len(each) // SIZE for each in PROMPTS] == [5, 6]
    assert [event.block_size for each in PAYLOADS for event in decode(each).events] == [SIZE, SIZE]


def test_all_that_the_engine_stored_is_held(index):
    """Each stored prompt matches to its last block, and nothing else does."""
    assert [index.table.matched(blocks_of(each), R1) for each in PROMPTS] == [5, 6]
    assert index.held(R1) == 11
    assert index.is_exact(R1)


def test_a_predicted_hit_is_the_engines_own(index):
    """The engine was sent the first prompt again: it hit as many tokens as are predicted."""
    predicted = SIZE * index.table.matched(blocks_of(PROMPTS[0]), R1)
    assert counter("vllm:prefix_cache_hits_total") == predicted == 160


def test_a_prompt_that_differs_matches_to_where_it_does(index):
    """One other token ends the match at its block."""
    tokens = list(PROMPTS[1])
    tokens[3 * SIZE + 5] += 1
    assert index.table.matched(blocks_of(tokens), R1) == 3


def test_a_removal_names_blocks_as_the_store_did(index):
    """The engine's names lead back to our blocks."""
    last = decode(PAYLOADS[0]).events[0].names[-1]
    index.apply(Removed(R1, 0, (last,)))
    assert index.table.matched(blocks_of(PROMPTS[0]), R1) == 4
