"""Engines that publish over real ZMQ sockets, and the index that follows them."""

from __future__ import annotations

import asyncio
import builtins
import socket
import struct
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import pytest
import structlog
from prometheus_client import CollectorRegistry

from ext_proc.control import relieving
from ext_proc.requests.blocks import chained
from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.cache.prefix_uses import DOUBTS
from ext_proc.routing.relief import Relief
from ext_proc.routing.values.pool import Endpoint, EndpointKey, KvEvents, Pool, Variant
from ext_proc.routing.values.request import Features, Form
from ext_proc.telemetry.kv_events import subscribe
from ext_proc.telemetry.kv_events.collector import TOLD_AFTER_S, KvCollector
from support.kv_engine import KvCache, KvEngine
from tidegate.stack.processes.ports import HeldPorts

R1 = EndpointKey("r1", 1)
SIZE = 4
A, B, C = tuple(range(8)), tuple(range(100, 108)), tuple(range(200, 212))


def blocks_of(tokens):
    request = Features(Form.OPENAI, model="m")
    return chained(request, struct.pack(f"<{len(tokens)}I", *tokens), SIZE * 4)


class Sink:
    """An index without the rest of a router."""

    def __init__(self):
        self.index = PrefixIndex()

    def cached(self, event):
        self.index.apply(event)


class Made:
    """A collector and its index."""

    def __init__(self):
        self.sink = Sink()
        self.registry = CollectorRegistry()
        self.collector = KvCollector(self.sink, self.registry)

    def follow(self, *events, block_tokens=SIZE):
        endpoints = tuple(
            Endpoint(EndpointKey(f"r{n}", 1), "stable", f"10.0.0.{n}:1", None, kv_events=each)
            for n, each in enumerate(events, 1)
        )
        pool = Pool(
            "p",
            models=frozenset({"m"}),
            variants=(Variant("stable", 1),),
            endpoints=endpoints,
            block_tokens=block_tokens,
        )
        self.collector.set_pools({"p": pool})

    def depth(self, tokens):
        return self.sink.index.table.matched(blocks_of(tokens), R1)

    async def until(self, condition):
        async with asyncio.timeout(150):
            while not condition():  # noqa: ASYNC110 - sockets do not show the state of the index
                await asyncio.sleep(0.01)

    def count(self, what):
        labels = {"what": what}
        return self.registry.get_sample_value("tidegate_picker_kv_events_total", labels) or 0

    def endpoints(self, state):
        return self.registry.get_sample_value("tidegate_picker_kv_endpoints", {"state": state})


@contextmanager
def pair_of_ports():
    """Hold a port and the next one; return the first."""
    while True:
        with HeldPorts() as ports, socket.socket() as other:
            port = ports.take()
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            yield port
            return


@pytest.fixture
async def made():
    made = Made()
    task = asyncio.create_task(made.collector.run())
    await asyncio.sleep(0)
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def following(made, cache, **options):
    async with KvEngine(cache, **options) as engine:
        made.follow(KvEvents(engine.address, engine.replay, model="m"))
        await made.until(lambda: made.collector.state()["r1"]["engines"][0]["connected"])
        await engine.subscribed()
        if engine.replay is not None:
            await made.until(lambda: made.sink.index.is_exact(R1))
        yield engine


async def test_what_an_engine_publishes_is_in_the_index(made):
    """Stores and removals arrive in order; the state says that the cache is known."""
    cache = KvCache(SIZE, capacity=4)
    async with following(made, cache) as engine:
        cache.run(A)
        await engine.publish()
        await made.until(lambda: made.depth(A) == 2)
        cache.run(C)
        await engine.publish()
        await made.until(lambda: made.depth(C) == 3)
        assert made.depth(A) == cache.holds(A) == 1
        assert made.endpoints("exact") == 1
        assert made.count("BlockRemoved") == 1


@pytest.mark.parametrize("with_topic", [True, False])
async def test_a_late_picker_learns_what_is_held_already(made, with_topic):
    """It requests a replay when it has connected; replies have the topic or, of old, have not."""
    cache = KvCache(SIZE)
    async with KvEngine(cache, with_topic=with_topic) as engine:
        for prompt in (A, B):
            cache.run(prompt)
            await engine.publish()
        made.follow(KvEvents(engine.address, engine.replay, model="m"))
        await made.until(lambda: made.depth(B) == 2)
        assert made.depth(A) == 2
        assert engine.asked == [0]
        assert made.sink.index.is_exact(R1)


async def test_long_histories_of_several_engines_need_no_relief(made, monkeypatch, tmp_path):
    """A picker that starts reads them all at once, and decides about requests meanwhile.

    What the engines publish meanwhile waits, and its sockets do not keep the event loop busy. Time
    in which the thread waits for a CPU is left out: it depends on what else the machine runs.
    """
    monkeypatch.setattr(relieving, "_SCHEDSTAT", tmp_path / "not told")
    tall = tuple(range(1000, 1160))
    async with AsyncExitStack() as stack:
        events, engines = [], []
        for _ in range(2):
            cache = KvCache(SIZE, capacity=60)
            engine = await stack.enter_async_context(KvEngine(cache))
            engines.append(engine)
            for number in range(500):
                cache.run((number, *tall))
                await engine.publish()
            events.append(KvEvents(engine.address, engine.replay, model="m"))
        relief = Relief()
        watching = asyncio.create_task(relieving.relieve(relief, 0.1))
        made.follow(*events)
        try:
            with structlog.testing.capture_logs() as logs:
                await made.until(lambda: made.count("batches") > 100)
                for engine in engines:
                    await engine.subscribed()
                    engine.cache.run(tall)
                    await engine.publish()
                assert made.count("batches") < 1000, "the histories are still being read"
                await made.until(lambda: made.count("batches") == 1002)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        assert made.endpoints("exact") == 2
        assert [each for each in logs if each["event"] == "relief_changed"] == []


async def test_a_gap_is_closed_by_a_replay(made):
    """A lost batch is requested as soon as the next one reveals it."""
    cache = KvCache(SIZE)
    async with following(made, cache) as engine:
        cache.run(A)
        await engine.publish()
        await made.until(lambda: made.depth(A) == 2)
        cache.run(B)
        await engine.publish(lose=True)
        cache.run(C)
        await engine.publish()
        await made.until(lambda: made.depth(C) == 3)
        assert (made.depth(A), made.depth(B)) == (2, 2)
        assert engine.asked == [0, 1]
        assert made.count("gaps") == 0


async def test_a_gap_without_a_replay_purges(made):
    """The missed batches may have been removals, so everything before them is discarded."""
    cache = KvCache(SIZE)
    async with following(made, cache, replay=None) as engine:
        cache.run(A)
        await engine.publish()
        await made.until(lambda: made.depth(A) == 2)
        assert made.sink.index.is_exact(R1)
        await engine.publish(lose=True)
        cache.run(B)
        await engine.publish()
        await made.until(lambda: made.depth(B) == 2)
        assert made.depth(A) == 0
        assert (made.count("gaps"), made.endpoints("gaps")) == (1, 1)
        for _ in range(int(TOLD_AFTER_S)):
            assert not list(made.collector.notes())
            made.collector.check()
        made.collector.check()
        ((key, words),) = made.collector.notes()
        assert (key, words.startswith("batches of its KV events are missing")) == (R1, True)


async def test_a_replay_that_is_not_answered_purges(made, monkeypatch):
    """The wait is bounded; then the history continues with a gap."""
    monkeypatch.setattr(subscribe, "REPLAY_S", 0.05)
    cache = KvCache(SIZE)
    async with KvEngine(cache, replay=None) as engine:
        made.follow(KvEvents(engine.address, "tcp://127.0.0.1:9", model="m"))
        await engine.subscribed()
        await made.until(lambda: made.count("unanswered") == 1)
        cache.run(A)
        await engine.publish(lose=True)
        cache.run(B)
        await engine.publish()
        await made.until(lambda: made.depth(B) == 2)
        assert made.sink.index.is_exact(R1) is False


async def test_a_restarted_engine_begins_anew(made):
    """The end of a connection discards everything; the new process publishes what it holds."""
    cache, fresh = KvCache(SIZE), KvCache(SIZE)
    with HeldPorts() as ports:
        events, replay = ports.take(), ports.take()
        async with following(made, cache, events=events, replay=replay) as engine:
            cache.run(A)
            await engine.publish()
            await made.until(lambda: made.depth(A) == 2)
        await made.until(lambda: made.depth(A) == 0)
        assert made.sink.index.is_exact(R1) is False
        assert (made.endpoints("waiting"), made.endpoints("gaps")) == (1, 0)
        async with KvEngine(fresh, events, replay) as engine:
            fresh.run(B)
            await engine.publish()
            await made.until(lambda: made.depth(B) == 2)
            assert made.depth(A) == 0
            await made.until(lambda: made.sink.index.is_exact(R1) is True)


async def test_engines_of_one_endpoint_are_one_cache(made):
    """Data-parallel engines publish on consecutive ports; each is followed separately."""
    first, second = KvCache(SIZE), KvCache(SIZE, maps=False, as_bytes=True)
    with pair_of_ports() as events, pair_of_ports() as replay:
        async with KvEngine(first, events, replay) as one:
            async with KvEngine(second, events + 1, replay + 1):
                made.follow(KvEvents(one.address, one.replay, 2, "kv@", "m"))
                await one.subscribed()
                await made.until(lambda: made.sink.index.is_exact(R1))
                first.run(A)
                await one.publish()
                await made.until(lambda: made.depth(A) == 2)
            await made.until(lambda: made.sink.index.is_exact(R1) is False)
            assert made.depth(A) == 2


async def test_nonsense_costs_what_was_known_and_nothing_else(made):
    """Bad parts and bad batches are counted; the next valid one is applied."""
    cache = KvCache(SIZE)
    async with following(made, cache) as engine:
        await engine.send_raw(b"kv@", b"short", b"x")
        await engine.send_raw(b"kv@", (0).to_bytes(8, "big"), b"\xc1")
        await made.until(lambda: made.count("unreadable") == 2)
        engine._number = 1
        cache.run(A)
        await engine.publish()
        await made.until(lambda: made.depth(A) == 2)
        state = made.collector.state()["r1"]
        assert "MessagePack" in state["engines"][0]["last_error"]
        assert not state["exact"]


async def test_a_message_that_is_too_large_is_never_read(made, monkeypatch):
    """The socket drops the connection that delivers it, which is a lost connection."""
    monkeypatch.setattr(subscribe, "MAX_BATCH_BYTES", 1000)
    cache = KvCache(SIZE)
    async with following(made, cache) as engine:
        before = made.count("purges")
        await engine.send_raw(b"kv@", (0).to_bytes(8, "big"), b"x" * 2000)
        await made.until(lambda: made.count("purges") > before)
        assert made.count("unreadable") == 0


async def test_an_endpoint_that_is_named_no_longer_is_left_alone(made):
    """Its known cache content is discarded, and its counts are kept."""
    cache = KvCache(SIZE)
    async with following(made, cache) as engine:
        cache.run(A)
        await engine.publish()
        await made.until(lambda: made.depth(A) == 2)
        made.follow(None)
        assert made.depth(A) == 0
        assert made.sink.index.is_exact(R1) is None
        await asyncio.sleep(0)
        assert made.count("BlockStored") == 1
        assert made.collector.state() == {}


async def test_hashes_that_never_fit_are_told(made):
    """Another block size is logged with both sizes, once, and shown; dispatches count as usual."""
    cache = KvCache(SIZE)
    async with following(made, cache) as engine:
        made.follow(KvEvents(engine.address, engine.replay, model="m"), block_tokens=8)
        await made.until(lambda: made.sink.index.is_exact(R1))
        cache.run(A)
        await engine.publish()
        await made.until(lambda: made.count("passed_size") == 2)
        for number in range(DOUBTS):
            made.sink.index.insert(R1, (number,), 0.0)
        with structlog.testing.capture_logs() as logs:
            made.collector.check()
            made.collector.check()
    (warned,) = [each for each in logs if each["event"] == "kv_events_never_confirm"]
    assert (warned["engine_block_size"], warned["block_tokens"]) == (SIZE, 8)
    assert "routing.block_tokens" in warned["fix"]


async def test_without_the_extra_the_log_names_it(made, monkeypatch):
    """A picker without pyzmq continues, logs once what is missing, and estimates caches."""
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "zmq":
            raise ImportError("No module named 'zmq'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with structlog.testing.capture_logs() as logs:
        made.follow(KvEvents("tcp://127.0.0.1:1", model="m"))
        made.follow(KvEvents("tcp://127.0.0.1:2", model="m"))
    (entry,) = [each for each in logs if each["event"] == "kv_events_not_available"]
    assert "tidegate[kv-events]" in entry["fix"]
    assert made.sink.index.is_exact(R1) is None
