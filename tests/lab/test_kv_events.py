"""Replicas whose engines publish KV events: prompts go to the replica that caches them.

The replicas compute nothing; beside each runs an engine's cache that publishes as vLLM does, filled
by the test as if other pickers had sent the prompts: what the picker knows, it knows from events.
"""

from __future__ import annotations

import itertools

import pytest

from support.kv_engine import KvCache, KvEngine
from support.replicas import Replica, stack_over
from support.traffic import eventually, metric, picker_state

PATH = "/v1/completions"
SIZE = 16
PROMPTS = itertools.count(1)


def fresh_prompt():
    """Return 20 new blocks of tokens."""
    first = next(PROMPTS)
    return tuple(first * 1000 + each for each in range(20 * SIZE))


class Publishing(Replica):
    """A replica with an engine that publishes KV events."""

    engine: KvEngine

    def endpoint(self, **more):
        events = {"address": self.engine.address}
        if self.engine.replay is not None:
            events["replay"] = self.engine.replay
        return super().endpoint(telemetry={"kv_events": events}, **more)


@pytest.fixture(scope="module")
async def replicas():
    """Run two replicas; only the first supports replay."""
    first, second = Publishing("r1"), Publishing("r2")
    async with (
        KvEngine(KvCache(SIZE, 1000)) as one,
        KvEngine(KvCache(SIZE, 60, maps=False), replay=None) as two,
    ):
        first.engine, second.engine = one, two
        yield first, second


@pytest.fixture(scope="module")
async def stack(demo_extra, replicas):  # noqa: ARG001 - skips first
    """Run one stack over the replicas, with the engines' block size."""
    more = {
        "match": {"models": ["toy-llm"], "paths": [PATH]},
        "routing": {"block_tokens": SIZE, "body": "full"},
    }
    async with stack_over(*replicas, more=more) as running:
        yield running


async def known(http, stack, name):
    """Return whether a replica's cache is known, and the number of its blocks in the index."""
    state = await picker_state(http, stack)
    engine = state["telemetry"]["kv_events"][name]
    held = state["router"]["pools"]["llm"]["endpoints"][name]["index_blocks"]
    return engine["exact"], held


async def goes_to(http, stack, replicas, prompt):
    """Send a prompt; return the replica that served it."""
    before = [len(each.asked) for each in replicas]
    body = {"model": "toy-llm", "prompt": list(prompt), "max_tokens": 2}
    async with http.post(stack.http_url + PATH, json=body) as answer:
        assert answer.status == 200
    (index,) = [i for i, each in enumerate(replicas) if len(each.asked) > before[i]]
    return replicas[index]


async def indexed(http, stack, replica, blocks):
    """Publish events until the index contains ``count`` blocks of a replica."""
    await replica.engine.publish()

    async def shows():
        return (await known(http, stack, replica.name))[1] == blocks

    assert await eventually(shows)


async def test_prompts_go_where_their_blocks_are(http, stack, replicas):
    """Prompts go to the replica with stored blocks, and no longer after their removal."""
    first, second = replicas

    async def both_known():
        return [(await known(http, stack, each.name))[0] for each in replicas] == [True, False]

    assert await eventually(both_known)
    await second.engine.subscribed()
    prompts = [fresh_prompt() for _ in range(4)]
    for prompt in prompts[:2]:
        second.engine.cache.run(prompt)
    await indexed(http, stack, second, 40)
    for prompt in prompts[2:]:
        first.engine.cache.run(prompt)
    await indexed(http, stack, first, 40)
    for prompt in prompts[:2]:
        assert await goes_to(http, stack, replicas, prompt) is second
    for prompt in prompts[2:]:
        assert await goes_to(http, stack, replicas, prompt) is first
    # The second gives two up for others, and the first computes one of them.
    for _ in range(3):
        second.engine.cache.run(fresh_prompt())
    await indexed(http, stack, second, 60)
    first.engine.cache.run(prompts[0])
    await indexed(http, stack, first, 60)
    assert await goes_to(http, stack, replicas, prompts[0]) is first


async def test_a_lost_batch_is_replayed_or_drops_the_index(http, stack, replicas):
    """With replay the index stays complete; without replay it is dropped."""
    first, second = replicas
    lost, later = fresh_prompt(), fresh_prompt()
    first.engine.cache.run(lost)
    await first.engine.publish(lose=True)
    first.engine.cache.run(later)
    held = len(first.engine.cache.prompts())
    await indexed(http, stack, first, held)
    assert await goes_to(http, stack, replicas, lost) is first

    second.engine.cache.clear()
    await second.engine.publish(lose=True)
    second.engine.cache.run(fresh_prompt())
    await indexed(http, stack, second, 20)
    gaps = {"what": "gaps"}
    assert await metric(http, stack.picker_metrics, "tidegate_picker_kv_events_total", **gaps) >= 1


async def test_a_dead_engine_holds_nothing(http, stack, replicas):
    """When an engine's connection ends, its index is dropped; requests continue."""
    first, _ = replicas
    prompt = fresh_prompt()
    first.engine.cache.run(prompt)
    await indexed(http, stack, first, len(first.engine.cache.prompts()))
    await first.engine.__aexit__(None, None, None)

    async def forgotten():
        return await known(http, stack, "r1") == (False, 0)

    assert await eventually(forgotten)
    assert await goes_to(http, stack, replicas, prompt) in replicas
