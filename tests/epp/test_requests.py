"""The endpoint-picker protocol's request vectors against a picker, in every body mode.

The ids are those of ``docs/reference/vectors.md``, which also lists what differs on purpose.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.ticket import Outcome
from support.epp import MODES, POOL_BODY, SEEING, Proxy
from support.peer import Peer
from support.streams import (
    CHAT_PATH,
    GRPC_INFER,
    GRPC_LIVE,
    GRPC_STREAM,
    INFER_PATH,
    Answer,
    Messages,
    frame,
    llm,
    replicas,
    router,
    vision,
)

PROMPT = b'{"text_input": "' + b"tell me about tides " * 60 + b'", "max_tokens": 100}'
CHAT = b'{"model": "toy-llm", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}'
CUT = (CHAT[:15], CHAT[15:])
"""The model's name is cut in the middle."""

FIRST, SECOND, THIRD = (f"10.0.0.{number}:8080" for number in (1, 2, 3))


def pool(mode, count=3, **changes):
    """Return the pool of a route with that body mode."""
    return llm(body=POOL_BODY[mode], endpoints=replicas(count), **changes)


def queued(request_router, *queues, running=None, at=None):
    """Report queued requests of each replica's page to the picker."""
    at = time.monotonic() if at is None else at
    for number, waiting in enumerate(queues, 1):
        request_router.registry.observe(
            f"r{number}", [Reading(at=at, queued=waiting, running=running)]
        )


def ended(mode):
    """Return the outcome of a request whose stream ends without a response message.

    Of a generic proxy that sends headers only the picker cannot know whether it has ended.
    """
    return Outcome.UNSEEN if Proxy.generic and mode == "none" else Outcome.DONE


@pytest.fixture(params=["grpc", "nghttp2", "generic"], autouse=True)
def form(request, monkeypatch):
    """Each transport, and a proxy that the control server did not configure."""
    generic = request.param == "generic"
    monkeypatch.setattr(Peer, "transport", "grpc" if generic else request.param)
    monkeypatch.setattr(Proxy, "generic", generic)
    return request.param


@pytest.fixture(params=MODES)
def mode(request):
    """Each body mode."""
    return request.param


@pytest.fixture(params=SEEING)
def seeing(request):
    """Each mode in which the body is read first."""
    return request.param


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


@pytest.mark.parametrize(
    ("hint", "allowed"),
    [
        (None, {FIRST, SECOND, THIRD}),
        ({"unrelated": "x"}, {FIRST, SECOND, THIRD}),
        (["10.0.0.3:8080"], {THIRD}),
        ("10.0.0.2:8080,10.0.0.3:8080", {SECOND, THIRD}),
        ("  10.0.0.2:8080 ,  ,  10.0.0.3:8080  ", {SECOND, THIRD}),
        (["10.0.0.2:8080, 10.0.0.3:8080"], {SECOND, THIRD}),
        (["10.0.0.1"], {FIRST}),
        (["10.0.0.1:8080", "10.0.0.2"], {FIRST, SECOND}),
        (["10.0.0.2:8080", 7], {SECOND}),
    ],
)
async def test_subsets(mode, hint, allowed):
    """V17, V18, V21, V22, V24, V26, V27, V81: pick and fallbacks are of the subset."""
    async with Proxy(router(pool(mode))) as proxy:
        result = await proxy.ask(mode, chunks=[PROMPT], subset=hint)
        assert set(result.picked) == allowed


@pytest.mark.parametrize("hint", [[], "", "192.168.1.1:8080", ["10.0.0.1:3000"], [7]])
async def test_subsets_without_a_replica(mode, hint):
    """V23, V25, V27d, V43: 503 with its reason."""
    async with Proxy(router(pool(mode))) as proxy:
        result = await proxy.ask(mode, chunks=[PROMPT], subset=hint)
        assert result.refused == (503, "no-endpoints")


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


# --- bodies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"passthrough-parser", b"\xff\0", b'{"text_input": 7}'])
async def test_an_opaque_body(mode, body):
    """V36, V44: with a known pool it is routed unchanged; the replica may understand it."""
    async with Proxy(router(pool(mode))) as proxy:
        queued(proxy.router, 3.0, 0.0, 10.0)
        result = await proxy.ask(mode, chunks=[body], headers={"x-unknown-objective": "direct"})
        assert result.picked[0] == SECOND
        assert result.upstream == body


async def test_a_body_in_two_chunks(mode):
    """V37, V59: one decision, on the model's whole name where bodies are read; one body."""
    async with Proxy(router(pool(mode), vision())) as proxy:
        result = await proxy.ask(mode, CHAT_PATH, CUT, route="unnamed/v1/chat/completions")
        assert result.decisive.picked[0].startswith("10.0.0.")
        assert result.upstream == CHAT
        message = frame("toy-llm")
        result = await proxy.ask(mode, GRPC_INFER, [message[:9], message[9:]], route="unnamed/grpc")
        assert result.picked[0].endswith(":8081")
        assert result.upstream == message


async def test_an_invalid_body_that_should_name_the_model(seeing):
    """V38: 400 if only the body could name the pool; readable text, as JSON for JSON clients."""
    async with Proxy(router(pool(seeing))) as proxy:
        for body in (b"no healthy upstream", b'{"model": 7}', b"[]"):
            result = await proxy.ask(seeing, CHAT_PATH, [body], route="unnamed/chat")
            assert result.refused == (400, "bad-request")
            assert b'"error"' in result.decisive.message.immediate_response.body
        result = await proxy.ask(seeing, GRPC_INFER, [b"\x07\0\0\0\x01x"], route="unnamed/grpc")
        assert result.decisive.message.immediate_response.grpc_status.status == 3


async def test_a_missing_model(seeing):
    """V39: the path's default pool takes it; without one the answer names the headers."""
    body = [b'{"messages": []}']
    async with Proxy(router(pool(seeing))) as proxy:
        result = await proxy.ask(seeing, CHAT_PATH, body, route="unnamed/chat")
        assert result.picked is not None
    async with Proxy(router(pool(seeing, default_for_paths=frozenset()))) as proxy:
        result = await proxy.ask(seeing, CHAT_PATH, body, route="unnamed/chat")
        assert result.refused == (404, "unknown-model")
        assert b"model" in result.decisive.message.immediate_response.body


async def test_a_held_reply():
    """V31: in duplex exactly two replies: the headers' with the pick, then the body, unchanged."""
    async with Proxy(router(pool("duplex"))) as proxy:
        result = await proxy.ask("duplex", chunks=[PROMPT])
        first, second = result.answers
        assert (first.kind, second.kind) == ("request_headers", "request_body")
        assert first.picked
        assert not second.common.HasField("header_mutation")
        assert result.upstream == PROMPT


@pytest.mark.parametrize(
    ("size", "pieces"),
    [(0, 1), (61_000, 1), (62_000, 1), (62_001, 2), (63_000, 2), (125_000, 3)],
)
async def test_chunk_sizes(size, pieces):
    """V75: pieces of at most 62,000 bytes, the end on the last only, every byte there."""
    async with Proxy(router(pool("duplex"))) as proxy:
        result = await proxy.ask("duplex", chunks=[b"x" * size])
        parts = [each for each in result.answers if each.kind == "request_body"]
        streamed = [each.common.body_mutation.streamed_response for each in parts]
        assert len(streamed) == pieces
        assert [each.end_of_stream for each in streamed] == [False] * (pieces - 1) + [True]
        assert result.upstream == b"x" * size


async def test_a_request_that_ends_by_trailers():
    """Section 3: in duplex trailers may end the body; they are answered last."""
    async with Proxy(router(pool("duplex"))) as proxy:
        result = await proxy.ask("duplex", chunks=[PROMPT[:500], PROMPT[500:]], trailers=True)
        assert [each.kind for each in result.answers][-1] == "request_trailers"
        assert result.picked
        assert result.upstream == PROMPT


async def test_headers_only(mode):
    """V46: a GET gets one reply at once, by the usual policy."""
    async with Proxy(router(pool(mode))) as proxy:
        queued(proxy.router, 3.0, 0.0, 10.0)
        result = await proxy.ask(mode, "/v2/models/toy-llm/config", method="GET")
        assert [each.kind for each in result.answers] == ["request_headers"]
        assert result.picked[0] == SECOND


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


# --- the rest of the exchange -------------------------------------------------------------------


@pytest.mark.parametrize("path", [INFER_PATH, CHAT_PATH])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("trailers", [False, True])
async def test_responses(mode, path, streamed, trailers):
    """V30, V47-V49, V62, V63, V77, V79: each part is answered once, unchanged; one completion.

    Only load reports are removed. The stream, and with it the charge, lasts to the end.
    """
    async with Proxy(router(pool(mode))) as proxy:
        body = PROMPT if path == INFER_PATH else CHAT
        result = await proxy.ask(mode, path, [body])
        response = Messages().response("headers")
        pieces = [b"data: {}\n\n", b"", b"no healthy upstream"] if streamed else [b"{}"]
        for piece in pieces:
            response.response("body", piece)
        if trailers:
            response.response("trailers")
        _, answers = await proxy.talk(response, result.call)
        assert [each.kind for each in answers] == [
            "response_headers",
            *["response_body"] * len(pieces),
            *["response_trailers"] * trailers,
        ]
        headers, *rest = answers
        removed = headers.common.header_mutation.remove_headers
        assert list(removed) == ["endpoint-load-metrics", "endpoint-load-metrics-bin"]
        headers.common.ClearField("header_mutation")
        unchanged = [headers, *(each for each in rest if "trailers" not in each.kind)]
        assert all(each.common.ByteSize() == 0 for each in unchanged)
        assert sum(proxy.router.registry.in_flight().values()) == 1
        await proxy.finish(result.call)
        await proxy.settled(Outcome.DONE)
        assert proxy.router.ledger.outcomes.total() == 1


async def test_who_served(mode):
    """V28, V29: the replica that served is credited; without that report nothing changes."""
    async with Proxy(router(pool(mode))) as proxy:
        result = await proxy.ask(mode, chunks=[PROMPT])
        other = result.picked[1]
        names = {each.http: each.key.id for each in replicas(3)}
        key = "x-gateway-destination-endpoint-served"
        for served, holder in (
            (None, result.picked[0]),
            ({}, result.picked[0]),
            ({key: other}, other),
        ):
            await proxy.talk(Messages().response(served=served), result.call)
            assert proxy.router.registry.in_flight()[names[holder]] == 1
        await proxy.finish(result.call)
        await proxy.settled(Outcome.DONE)


async def test_a_duplicate_last_chunk(seeing):
    """Section 4, rule 7: a second end of stream (envoy #46237) is answered without a decision."""
    async with Proxy(router(pool(seeing))) as proxy:
        result = await proxy.ask(seeing, chunks=[PROMPT])
        _, (answer,) = await proxy.talk(Messages().body(b""), result.call)
        assert (answer.kind, answer.picked) == ("request_body", None)
        assert sum(proxy.router.registry.in_flight().values()) == 1


async def test_fifty_at_once(mode):
    """V103: streams do not wait for each other, and each settles its own charge."""
    async with Proxy(router(pool(mode))) as proxy:
        held = await proxy.ask(mode, chunks=[PROMPT])
        many = await asyncio.gather(*(proxy.ask(mode, chunks=[PROMPT]) for _ in range(50)))
        assert all(each.picked for each in many)
        assert sum(proxy.router.registry.in_flight().values()) == 51
        await asyncio.gather(*(proxy.finish(each.call) for each in (*many, held)))
        await proxy.settled(ended(mode))
