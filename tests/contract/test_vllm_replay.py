"""A replay recorded from vLLM 0.32.0: its frames, reuse reported as stores, and evictions."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path

import pytest
import zmq
import zmq.asyncio
from prometheus_client import CollectorRegistry

from ext_proc.requests.blocks import chained
from ext_proc.routing.cache.index_events import Reporting
from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.values.pool import Endpoint, EndpointKey, KvEvents, Pool, Variant
from ext_proc.routing.values.request import Features, Form
from ext_proc.telemetry.kv_events.collector import KvCollector
from ext_proc.telemetry.kv_events.follower import Follower
from ext_proc.telemetry.kv_events.translate import Translator

FOLDER = Path(__file__).parent / "fixtures" / "vllm-0.32.0"
FRAMES = [
    [bytes.fromhex(frame) for frame in json.loads(line)]
    for line in (FOLDER / "replay.jsonl").read_text().splitlines()
]
HITS = [json.loads(line) for line in (FOLDER / "hits.jsonl").read_text().splitlines()]
RECOMPUTED = [
    json.loads(line) for line in (FOLDER / "recomputed-hits.jsonl").read_text().splitlines()
]
RECOMPUTED_FRAMES = [
    [bytes.fromhex(frame) for frame in json.loads(line)]
    for line in (FOLDER / "recomputed.jsonl").read_text().splitlines()
]
SIZE = 32
R1 = EndpointKey("r1", 1)


def predicted(index, tokens):
    """Return the tokens that an engine reads from its cache by the index; it computes the last."""
    return SIZE * min(index.table.matched(hashed(tokens), R1), (len(tokens) - 1) // SIZE)


def hashed(tokens):
    """Return the blocks of a prompt."""
    asked = Features(Form.OPENAI, model="tiny")
    return chained(asked, struct.pack(f"<{len(tokens)}I", *tokens), SIZE * 4)


def test_a_reply_has_four_frames():
    """An empty one, topic, number and batch; the last reply has the number -1."""
    assert {len(each) for each in FRAMES} == {4}
    numbers = [int.from_bytes(each[2], "big", signed=True) for each in FRAMES]
    assert numbers == [*range(len(FRAMES) - 1), -1]


def test_each_prediction_is_the_engines_own_count():
    """Through reported reuse, computed copies and evictions, before each of the requests."""
    found, counts = predictions(FRAMES, HITS)
    assert found == [hit["cached"] for hit in HITS]
    assert sum(hit["report"] and hit["cached"] > 0 for hit in HITS) >= 3
    assert counts["BlockRemoved"] > 0


def test_predictions_hold_where_a_prompt_was_computed_from_its_root():
    """``prompt_logprobs`` makes a copy; after the eviction of one the engine still hits."""
    found, counts = predictions(RECOMPUTED_FRAMES, RECOMPUTED)
    assert found == [hit["cached"] for hit in RECOMPUTED]
    assert [hit["cached"] for hit in RECOMPUTED if not hit["report"]].count(5 * SIZE) == 1
    assert counts["BlockRemoved"] > 0


def predictions(frames, hits):
    """Return what the index predicts before each request, and what its engine published."""
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
    batches = iter(frames[:-1])
    seen, found = 0, []
    for hit in hits:
        while seen < hit["batches"]:
            _, _, number, payload = next(batches)
            assert follower.replayed(int.from_bytes(number, "big"), payload, first=not seen)
            seen += 1
        again = hit.get("recomputed", False)
        found.append(0 if again else predicted(index, hit["prompt"]))
        index.provisional.propose(R1, hashed(hit["prompt"]), 0.0, recomputed=again)
    return found, follower.counts


class Sink:
    """An index without the rest of a router."""

    def __init__(self):
        self.index = PrefixIndex()

    def cached(self, event):
        self.index.apply(event)


async def replaying(router):
    """Answer each replay request with the recorded frames."""
    while True:
        client, *_ = await router.recv_multipart()
        for frames in FRAMES:
            await router.send_multipart([client, *frames])


@pytest.fixture
async def collector():
    """A collector that follows sockets at which the recording is replayed."""
    sink = Sink()
    collector = KvCollector(sink, CollectorRegistry())
    with zmq.asyncio.Context() as context:
        published, router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        for each in (published, router):
            each.linger = 0
            each.bind("tcp://127.0.0.1:*")
        addresses = [each.last_endpoint.decode() for each in (published, router)]
        events = KvEvents(*addresses, model="tiny")
        endpoint = Endpoint(R1, "stable", "10.0.0.1:1", None, kv_events=events)
        pool = Pool(
            "p",
            models=frozenset({"tiny"}),
            variants=(Variant("stable", 1),),
            endpoints=(endpoint,),
            block_tokens=SIZE,
        )
        tasks = [asyncio.create_task(replaying(router)), asyncio.create_task(collector.run())]
        collector.set_pools({"p": pool})
        yield collector, sink.index
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        context.destroy(linger=0)


async def test_a_picker_that_starts_late_knows_what_the_engine_holds(collector):
    """The recorded frames, over real sockets, are the whole content of its cache."""
    following, index = collector
    async with asyncio.timeout(30):
        while not index.is_exact(R1):  # noqa: ASYNC110 - sockets do not show the state of the index
            await asyncio.sleep(0.01)
    (engine,) = following.state()["r1"]["engines"]
    assert engine["counts"].get("unreadable", 0) == 0
    assert predicted(index, HITS[-1]["prompt"]) == HITS[-1]["cached"] == 5 * SIZE
    evicted = next(hit for hit in HITS if len(hit["prompt"]) == 20 * SIZE)
    assert predicted(index, evicted["prompt"]) < 20 * SIZE - SIZE
