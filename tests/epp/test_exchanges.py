"""The endpoint-picker protocol's vectors of bodies, responses and ends, in every body mode.

The ids are those of ``docs/reference/vectors.md``, which also lists what differs on purpose.
"""

from __future__ import annotations

import asyncio

import pytest

from ext_proc.exchange.known import ExchangeOptions
from ext_proc.routing.values.ticket import Outcome
from support.epp import CHAT, PROMPT, SECOND, Proxy, ended, pool, queued
from support.streams import (
    CHAT_PATH,
    GRPC_INFER,
    INFER_PATH,
    Messages,
    frame,
    replicas,
    router,
    vision,
)

pytestmark = pytest.mark.usefixtures("form")

CUT = (CHAT[:15], CHAT[15:])
"""The model's name is cut in the middle."""


# --- bodies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"passthrough-parser", b"\xff\0", b'{"text_input": 7}'])
async def test_an_opaque_body(mode, body):
    """V36, V44: where its pool passes it, it is routed unchanged; the replica may understand it."""
    async with Proxy(router(pool(mode, unsound_requests="pass"))) as proxy:
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


async def test_a_missing_model_where_one_is_required(seeing):
    """V39: 400, as llm-d answers it; a model in the body or in the header is enough."""
    options = ExchangeOptions(require_model=True)
    async with Proxy(router(pool(seeing)), options=options) as proxy:
        for body in (b'{"messages": []}', b'{"model": null, "messages": []}', b'{"model": 7}'):
            result = await proxy.ask(seeing, CHAT_PATH, [body], route="unnamed/chat")
            assert result.refused == (400, "bad-request")
            assert b"model" in result.decisive.message.immediate_response.body
        named = [CHAT]
        assert (await proxy.ask(seeing, CHAT_PATH, named, route="unnamed/chat")).picked is not None


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
    async with Proxy(router(pool("duplex", unsound_requests="pass"))) as proxy:
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


# --- the rest of the exchange ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "streamed", "trailers"),
    [(INFER_PATH, False, False), (CHAT_PATH, True, False), (INFER_PATH, True, True)],
)
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
        assert proxy.counted("served_elsewhere_total") == 1


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
