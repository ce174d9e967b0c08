"""The endpoint-picker protocol's vectors of choices and refusals, in every body mode.

The ids are those of ``docs/reference/vectors.md``, which also lists what differs on purpose.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from ext_proc.routing.values.reading import Reading
from support.epp import CHAT, FIRST, POOL_BODY, PROMPT, SECOND, THIRD, Proxy, ended, pool, queued
from support.streams import (
    CHAT_PATH,
    GRPC_INFER,
    GRPC_LIVE,
    GRPC_STREAM,
    Answer,
    Messages,
    frame,
    llm,
    replicas,
    router,
    vision,
)

pytestmark = pytest.mark.usefixtures("form")


# --- choice -------------------------------------------------------------------------------------


async def test_queues(mode):
    """V32, V55: the replica with the least work waiting gets it, over HTTP and gRPC."""
    async with Proxy(router(pool(mode))) as proxy:
        queued(proxy.router, 3.0, 0.0, 10.0)
        result = await proxy.ask(mode, chunks=[PROMPT])
        assert result.picked[0] == SECOND
        result = await proxy.ask(mode, GRPC_INFER, [frame("toy-llm")])
        assert result.picked[0] == "10.0.0.2:8081"
        assert result.upstream == frame("toy-llm")
        assert proxy.counted("picks_total", pool="llm", variant="stable", reason="least") == 2


@pytest.mark.parametrize("queues", [(0.0, 0.0, 10.0), (10.0, 10.0, 10.0)])
async def test_a_replica_with_the_adapter(seeing, queues):
    """V33, V34: of replicas that are alike otherwise the one that has the request's adapter."""
    async with Proxy(router(pool(seeing, models=frozenset(), default_for_http=True))) as proxy:
        queued(proxy.router, *queues)
        at = time.monotonic()
        for number, names in enumerate(({"foo", "bar"}, {"L"}, {"foo", "bar"}), 1):
            reading = Reading(at=at, queued=queues[number - 1], adapters=frozenset(names))
            proxy.router.registry.observe(f"r{number}", [reading])
        body = CHAT.replace(b"toy-llm", b"L")
        result = await proxy.ask(seeing, CHAT_PATH, [body], route="unnamed/chat")
        assert result.decisive.picked[0] == SECOND


async def test_nothing_is_shed_by_default(mode):
    """V35, V58: load above every threshold on all replicas is no reason to refuse."""
    async with Proxy(router(pool(mode))) as proxy:
        queued(proxy.router, 600.0, 700.0, 800.0, running=64.0)
        assert (await proxy.ask(mode, chunks=[PROMPT])).picked[0] == FIRST
        result = await proxy.ask(mode, GRPC_INFER, [frame("toy-llm")])
        assert result.picked[0] == "10.0.0.1:8081"


@pytest.mark.parametrize("path", [GRPC_STREAM, GRPC_LIVE])
async def test_other_methods(mode, path):
    """V56, V57: streams and other calls of the service are routed too."""
    async with Proxy(router(pool(mode))) as proxy:
        queued(proxy.router, 3.0, 0.0, 10.0)
        result = await proxy.ask(mode, path, [frame("toy-llm")])
        assert result.picked[0] == "10.0.0.2:8081"
        assert result.upstream == frame("toy-llm")


async def test_stale_readings(mode):
    """V120: old readings count as none; the ledger alone decides, and no request is refused."""
    async with Proxy(router(pool(mode))) as proxy:
        queued(proxy.router, 0.0, 900.0, 900.0, at=time.monotonic() - 3600)
        first = {(await proxy.ask(mode, chunks=[b"{}"])).picked[0] for _ in range(3)}
        assert first == {FIRST, SECOND, THIRD}


async def test_round_robin(mode):
    """V14: of two the second request gets the other, the third the first again."""
    async with Proxy(router(pool(mode, 2, policy="round-robin"))) as proxy:
        one, two, three = [(await proxy.ask(mode, chunks=[PROMPT])).picked[0] for _ in range(3)]
        assert one != two
        assert three == one


async def test_sequences_while_their_replica_drains(seeing):
    """V122: a sequence stays on its replica; a new sequence goes elsewhere."""
    request_router = router(pool(seeing, 2))
    async with Proxy(request_router) as proxy:
        result = await proxy.ask(seeing, GRPC_INFER, [frame("toy-llm", sequence=7)])
        home = result.picked[0]
        draining = tuple(replace(each, draining=each.grpc == home) for each in replicas(2))
        request_router.set_pools({"llm": replace(pool(seeing, 2), endpoints=draining)}, 1.0)
        again = await proxy.ask(seeing, GRPC_INFER, [frame("toy-llm", sequence=7)])
        assert again.picked == [home]
        other = await proxy.ask(seeing, GRPC_INFER, [frame("toy-llm", sequence=8)])
        assert home not in other.picked


async def test_one_session_one_variant(mode):
    """V67: a session header decides the draw wherever the picker draws, ten times out of ten."""
    split = vision(
        variants=tuple(replace(each, weight=1, headers=()) for each in llm().variants),
        endpoints=replicas(1, base=20) + replicas(1, "canary", base=21),
        body=POOL_BODY[mode],
    )
    async with Proxy(router(pool(mode), split)) as proxy:
        seen = set()
        for _ in range(10):
            headers = {"x-session-id": "sess-A", "tidegate-pool": "vision"}
            result = await proxy.ask(
                mode, CHAT_PATH, [CHAT], headers=headers, route="unnamed/v1/chat/completions"
            )
            seen.add(result.picked[0])
        assert len(seen) == 1


# --- subsets ------------------------------------------------------------------------------------


ALLOWED = (
    (None, {FIRST, SECOND, THIRD}),
    ({"unrelated": "x"}, {FIRST, SECOND, THIRD}),
    (["10.0.0.3:8080"], {THIRD}),
    ("10.0.0.2:8080,10.0.0.3:8080", {SECOND, THIRD}),
    ("  10.0.0.2:8080 ,  ,  10.0.0.3:8080  ", {SECOND, THIRD}),
    (["10.0.0.2:8080, 10.0.0.3:8080"], {SECOND, THIRD}),
    (["10.0.0.1"], {FIRST}),
    (["10.0.0.1:8080", "10.0.0.2"], {FIRST, SECOND}),
    (["10.0.0.2:8080", 7], {SECOND}),
)
"""Hints, and the replicas that they allow."""


async def test_subsets(mode):
    """V17, V18, V21, V22, V24, V26, V27, V81: pick and fallbacks are of the subset."""
    async with Proxy(router(pool(mode))) as proxy:
        for hint, allowed in ALLOWED:
            result = await proxy.ask(mode, chunks=[PROMPT], subset=hint)
            assert set(result.picked) == allowed, hint


async def test_subsets_without_a_replica(mode):
    """V23, V25, V27d, V43: 503 with its reason, which is counted."""
    async with Proxy(router(pool(mode))) as proxy:
        hints = ([], "", "192.168.1.1:8080", ["10.0.0.1:3000"], [7])
        for hint in hints:
            result = await proxy.ask(mode, chunks=[PROMPT], subset=hint)
            assert result.refused == (503, "no-endpoints"), hint
        assert proxy.counted("refusals_total", pool="llm", reason="no-endpoints") == len(hints)


async def test_the_subset_beats_the_load(mode):
    """V41, V42, V61: the best replica of the subset is picked, however much better others are."""
    async with Proxy(router(pool(mode))) as proxy:
        queued(proxy.router, 0.0, 5.0, 50.0)
        every = [FIRST, SECOND, THIRD]
        assert (await proxy.ask(mode, chunks=[PROMPT], subset=every)).picked[0] == FIRST
        assert (await proxy.ask(mode, chunks=[PROMPT], subset=[THIRD])).picked == [THIRD]
        result = await proxy.ask(mode, GRPC_INFER, [frame("toy-llm")], subset=["10.0.0.3:8081"])
        assert result.picked == ["10.0.0.3:8081"]


async def test_the_metadata_of_the_last_message(seeing):
    """V78: the subset of the body message replaces that of the headers."""
    async with Proxy(router(pool(seeing))) as proxy:
        call = proxy.open()
        messages = Proxy.messages(seeing)
        messages.head(subset=[FIRST]).body(PROMPT, subset=[SECOND])
        head, body = messages.bytes()
        await call.write(head)
        if seeing != "duplex":
            await call.read()
        await call.write(body)
        answer = Answer.of(await call.read())
        assert answer.picked == [SECOND]


# --- refusals -----------------------------------------------------------------------------------


async def test_an_empty_pool(mode):
    """V16, V40, V60: 503 in the caller's dialect, never a stream error; with or without a body."""
    async with Proxy(router(llm(body=POOL_BODY[mode], endpoints=()))) as proxy:
        for chunks in ([], [PROMPT]):
            result = await proxy.ask(mode, chunks=chunks)
            assert result.refused == (503, "no-endpoints")
            assert result.decisive.headers["retry-after"] == "1"
            result = await proxy.ask(mode, GRPC_INFER, chunks and [frame("toy-llm")])
            assert result.decisive.message.immediate_response.grpc_status.status == 14


async def test_saturation(mode):
    """V54, V89: at the limit of each replica 429, until one request has ended."""
    async with Proxy(router(pool(mode, 1, per_endpoint_in_flight=1))) as proxy:
        first = await proxy.ask(mode, chunks=[PROMPT])
        result = await proxy.ask(mode, chunks=[PROMPT])
        assert result.refused == (429, "saturated")
        assert result.decisive.headers["retry-after"] == "1"
        await proxy.finish(first.call)
        await proxy.settled(ended(mode))
        assert (await proxy.ask(mode, chunks=[PROMPT])).picked == [FIRST]


async def test_a_body_above_the_cap():
    """V80, V119: at the cap it is served, above it refused with 413; the stream stays intact."""
    body = b'{"text_input": "' + b"x" * 5_000_000 + b'"}'
    for cap, status in ((len(body), None), (len(body) - 1, 413)):
        async with Proxy(router(pool("buffered", max_body_bytes=cap))) as proxy:
            result = await proxy.ask("buffered", chunks=[body])
            if status is None:
                assert result.picked is not None
            else:
                assert result.refused == (413, "too-large")
            assert proxy.counted("errors_total", kind="internal") is None


async def test_a_body_before_the_head():
    """V117: a proxy that skips request headers is misconfigured: counted, and not answered."""
    async with Proxy(router(pool("buffered"))) as proxy:
        call, answers = await proxy.talk(Messages().body(PROMPT))
        assert answers == []
        assert (await call.code()).name == "OK"
        assert proxy.counted("errors_total", kind="protocol") == 1
