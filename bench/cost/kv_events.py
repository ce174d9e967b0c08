"""Cost of KV events in the picker: CPU per batch and block, with and without sockets, and memory.

Run ``python -m bench.cost.kv_events``. Batches are like vLLM's: all blocks of a prompt, or one
block of a growing answer. The publishers run in another process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
import tracemalloc
from typing import TYPE_CHECKING

import msgspec
import uvloop
import zmq
from prometheus_client import CollectorRegistry

from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.values.pool import Endpoint, EndpointKey, KvEvents, Pool, Variant
from ext_proc.telemetry.kv_events.collector import KvCollector
from ext_proc.telemetry.kv_events.follower import Follower
from ext_proc.telemetry.kv_events.translate import Translator

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from ext_proc.routing.cache.index_events import CacheEvent

KEY = EndpointKey("r1", 1)
SIZE = 16
BLOCKS = 100_000
ROUNDS = 5
ENGINES = 20
PER_SECOND = 50
"""Batches per second of each engine: one per step of 20 ms."""
SECONDS = 5.0


def follower(index: PrefixIndex) -> Follower:
    """Return a follower of one engine."""
    index.reports.set_reporting(KEY, complete=False)
    translator = Translator(
        KEY, 0, model="m", models=frozenset({"m"}), block_tokens=SIZE, block=index.reports.block
    )
    return Follower(translator, index.apply, lambda _: None, can_replay=True)


def stored(rng: random.Random, blocks: int, parent: int | None) -> tuple[bytes, list[int]]:
    """Return a batch that stores ``blocks`` blocks, and their names."""
    names = [rng.getrandbits(64) for _ in range(blocks)]
    event = {
        "type": "BlockStored",
        "block_hashes": names,
        "parent_block_hash": parent,
        "token_ids": [rng.randrange(150_000) for _ in range(blocks * SIZE)],
        "block_size": SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    return msgspec.msgpack.encode([1.0, [event], 0]), names


def measure(blocks: int) -> float:
    """Return the minimum CPU microseconds of a batch that stores ``blocks`` blocks."""
    best = float("inf")
    for seed in range(ROUNDS):
        rng = random.Random(seed)  # noqa: S311 - a benchmark
        index = PrefixIndex(max_blocks=BLOCKS)
        each = follower(index)
        batches = [stored(rng, blocks, None)[0] for _ in range(2000 // blocks + 20)]
        begin = time.process_time()
        for number, batch in enumerate(batches):
            each.live(number, batch)
        best = min(best, (time.process_time() - begin) / len(batches))
    return 1e6 * best


def publish(pipe: Connection) -> None:
    """Publish events of all engines, in a child process."""
    context, rng = zmq.Context(), random.Random(0)  # noqa: S311 - a benchmark
    sockets = [context.socket(zmq.PUB) for _ in range(ENGINES)]
    pipe.send(
        [f"tcp://127.0.0.1:{each.bind_to_random_port('tcp://127.0.0.1')}" for each in sockets]
    )
    number = 0
    while True:
        for each in sockets:
            each.send_multipart([b"kv", number.to_bytes(8, "big"), stored(rng, 1, None)[0]])
            time.sleep(1 / PER_SECOND / ENGINES)
        number += 1


class CountingSink:
    """An index without a router."""

    def __init__(self) -> None:
        self.index = PrefixIndex()

    def cached(self, event: CacheEvent, /) -> None:
        """Apply the event to the index and count it."""
        self.index.apply(event)


async def over_sockets() -> None:
    """Print the total cost of reading from sockets."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=publish, args=(there,), daemon=True)
    process.start()
    sink = CountingSink()
    collector = KvCollector(sink, CollectorRegistry())
    endpoints = tuple(
        Endpoint(EndpointKey(f"r{i}", 1), "v", "127.0.0.1:1", None, kv_events=KvEvents(address))
        for i, address in enumerate(here.recv())
    )
    pool = Pool("p", variants=(Variant("v", 1),), endpoints=endpoints, block_tokens=SIZE)
    collector.set_pools({"p": pool})
    running = asyncio.create_task(collector.run())
    await asyncio.sleep(1)

    def batches() -> int:
        state = collector.state().values()
        return sum(each["engines"][0]["counts"].get("batches", 0) for each in state)

    before, cpu, begin = batches(), time.process_time(), time.monotonic()
    await asyncio.sleep(SECONDS)
    cpu, took, count = time.process_time() - cpu, time.monotonic() - begin, batches() - before
    print(
        f"{ENGINES} engines over ZMQ, {count / took:.0f} batches/s of 1 block: "
        f"{100 * cpu / took:.1f} % of one core, {1e6 * cpu / count:.0f} us per batch"
    )
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    process.terminate()
    process.join()


def main() -> None:
    """Print the figures."""
    for blocks in (1, 8, 64, 256):
        cost = measure(blocks)
        print(f"a batch of {blocks:4} blocks: {cost:7.1f} us, {cost / blocks:6.2f} us per block")
    uvloop.run(over_sockets())
    rng = random.Random(0)  # noqa: S311 - a benchmark
    tracemalloc.start()
    index = PrefixIndex(max_blocks=10 * BLOCKS)
    each = follower(index)
    for number in range(BLOCKS // 50):
        each.live(number, stored(rng, 50, None)[0])
    print(f"memory: {tracemalloc.get_traced_memory()[0] / index.held(KEY):.0f} bytes per block")


if __name__ == "__main__":
    main()
