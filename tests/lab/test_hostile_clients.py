"""Clients that stall, disconnect or send too much leave no state in the picker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import tritonclient.grpc.aio as triton_grpc

from support.sockets import Raw, chunks, h2_request, head
from support.traffic import (
    GENERATE,
    GENERATE_STREAM,
    VISION,
    eventually,
    fresh_prompt,
    llm_inputs,
    metric,
    vision_body,
)
from tidegate_api.names import REASON_HEADER

SERVED = (("none", "grpc"), ("peek", "nghttp2"), ("full", "nghttp2"))
"""Body mode and transport of each stack."""
RSS_TOLERANCE = 24 * 2**20
"""Allowed growth of the picker, bytes: arenas that gRPC and Python keep for reuse."""


@pytest.fixture(scope="module", params=SERVED, ids="-".join)
async def mode_stack(request, new_module_stack):
    """Run one stack per body mode with short timeouts, one of them over the slow transport."""
    mode, transport = request.param
    routing = {"max_body": 1_000_000}
    pools = {name: {"routing": routing, "timeouts": {"idle": "3s"}} for name in ("llm", "vision")}
    stack = await new_module_stack(
        body=mode,
        transport=transport,
        fleet={"pools": pools, "listener": {"headers_timeout": "1s"}},
    )
    stack.mode = mode
    return stack


async def of_picker(http, stack, name: str) -> float:
    """Return the sum of a metric of the picker."""
    return await metric(http, stack.picker_metrics, f"tidegate_picker_{name}")


async def quiet(http, stack) -> bool:
    """Wait until the picker has neither a request nor a stream."""

    async def look() -> bool:
        names = ("in_flight", "open_streams")
        return not any([await of_picker(http, stack, name) for name in names])

    return await eventually(look)


def rss(stack) -> int:
    """Return the picker's resident memory in bytes."""
    pages = Path(f"/proc/{stack.pid('picker')}/statm").read_text().split()[1]
    return int(pages) * 4096


def generate(tokens: int = 1, **more: Any) -> bytes:
    """Return a generate body."""
    return orjson.dumps({"text_input": fresh_prompt(), "max_tokens": tokens, **more})


BODY = generate()
POINTS = {
    "in-the-head": ([head(GENERATE, f"content-length: {len(BODY)}")[:-6]], 0),
    "after-the-head": ([head(GENERATE, f"content-length: {len(BODY)}")], {"none": 1}),
    "in-the-body": ([head(GENERATE, f"content-length: {len(BODY)}"), BODY[:50]], {"none": 1}),
    "in-a-chunk": ([head(GENERATE, "transfer-encoding: chunked"), b"ff\r\n{"], {"none": 1}),
    "before-the-answer": (
        [head(GENERATE, f"content-length: {len(generate(3000))}"), generate(3000)],
        1,
    ),
    "in-the-answer": (
        [
            head(GENERATE_STREAM, f"content-length: {len(generate(3000, stream=True))}"),
            generate(3000, stream=True),
        ],
        1,
    ),
}
"""Part sent before the client disconnects, and the number of picks by mode."""


@pytest.mark.parametrize("point", POINTS)
async def test_a_client_that_vanishes(http, mode_stack, point):
    """A disconnect at any point of an exchange leaves no charge, no stream and no logged error."""
    parts, picks = POINTS[point]
    expected = picks if isinstance(picks, int) else picks.get(mode_stack.mode, 0)
    before = await of_picker(http, mode_stack, "picks_total")

    async def reached() -> bool:
        return await of_picker(http, mode_stack, "picks_total") == before + expected

    async with Raw(mode_stack.http_address) as raw:
        await raw.send(*parts)
        if point == "in-the-answer":
            assert await raw.status() == 200
        assert await eventually(reached)
        raw.vanish()
    assert await quiet(http, mode_stack)
    assert await reached()
    assert await of_picker(http, mode_stack, "errors_total") == 0


@pytest.mark.parametrize("stall", ["in-the-head", "in-the-body"])
async def test_a_client_that_stalls_is_ended(http, mode_stack, stall):
    """Slow loris: Envoy's timeouts end the request with 408, and the picker drops its state."""
    parts, _ = POINTS[stall]
    async with Raw(mode_stack.http_address) as raw:
        await raw.send(*parts)
        assert await asyncio.wait_for(raw.status(), 60) == 408
    assert await quiet(http, mode_stack)


async def test_chunked_and_trailers_over_http_1(http, mode_stack):
    """A body in many chunks with trailers is served."""
    body = orjson.dumps(vision_body())
    pieces = [body[at : at + 997] for at in range(0, len(body), 997)]
    for trailers in (None, {"x-checksum": "7"}):
        async with Raw(mode_stack.http_address) as raw:
            await raw.send(
                head(VISION, "transfer-encoding: chunked", "trailer: x-checksum"),
                chunks(pieces, trailers),
            )
            assert await raw.status() == 200
    assert await quiet(http, mode_stack)


async def assert_trailers_end(http, stack, pieces, pause_s=None):
    """Assert that a request that trailers end is served, but in `peek` refused without a pick."""
    before = await of_picker(http, stack, "picks_total")
    async with Raw(stack.http_address) as raw:
        sent = h2_request(raw, GENERATE, pieces, {"x-checksum": "7"}, pause_s=pause_s)
        answer = await asyncio.wait_for(sent, 60)
    assert await quiet(http, stack)
    picks = await of_picker(http, stack, "picks_total") - before
    status, reason = answer.headers[":status"], answer.headers.get(REASON_HEADER)
    if stack.mode == "peek":
        assert (status, reason, picks, answer.reset) == ("400", "trailers", 0, False)
        assert "without trailers" in orjson.loads(answer.body)["error"]
    else:
        assert (status, reason, picks, answer.reset) == ("200", None, 1, False)
        assert b"text_output" in answer.body


async def test_h2c_and_trailers(http, mode_stack):
    """HTTP/2 without TLS; the request ends with its last data frame, or with trailers."""
    body = generate()
    pieces = [body[:7], body[7:]]
    async with Raw(mode_stack.http_address) as raw:
        answer = await asyncio.wait_for(h2_request(raw, GENERATE, pieces), 60)
    assert (answer.headers[":status"], answer.reset) == ("200", False)
    assert b"text_output" in answer.body
    await assert_trailers_end(http, mode_stack, pieces)


async def test_trailers_that_come_late(http, mode_stack):
    """They arrive after the picker requested the body, and change nothing."""
    await assert_trailers_end(http, mode_stack, [generate()], pause_s=0.5)


async def deliver(stack, lines: list[str], parts: list[bytes]) -> int:
    """Send a generate request while reading the response; return its status."""
    async with Raw(stack.http_address) as raw:
        sending = asyncio.create_task(raw.send(head(GENERATE, *lines), *parts))
        status = await asyncio.wait_for(raw.status(), 60)
        await asyncio.wait([sending], timeout=5)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        return status


async def test_a_body_above_the_limit(http, mode_stack):
    """In full mode 413, with a content length and with chunks; in other modes Triton decides."""
    pieces = [BODY[:1], *[b" " * 50_000 for _ in range(40)], BODY[1:]]
    expected = 413 if mode_stack.mode == "full" else 200
    length = [f"content-length: {2_000_000 + len(BODY)}"]
    assert await deliver(mode_stack, length, pieces) == expected
    chunked = ["transfer-encoding: chunked"]
    assert await deliver(mode_stack, chunked, [chunks(pieces)]) == expected
    assert await quiet(http, mode_stack)


async def test_a_stalled_reader_of_a_stream(http, mode_stack):
    """A client that sends on its stream and reads nothing holds one charge until it disconnects."""
    never = asyncio.Event()

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "toy-llm", "inputs": llm_inputs(fresh_prompt(), 200)}
        await never.wait()

    async with triton_grpc.InferenceServerClient(mode_stack.grpc_address) as client:
        answers = client.stream_infer(requests())
        await answers.__anext__()
        assert await of_picker(http, mode_stack, "in_flight") == 1
        await asyncio.sleep(0.3)
        assert await of_picker(http, mode_stack, "open_streams") == 1
        answers.cancel()
    assert await quiet(http, mode_stack)


async def test_64_megabytes(http, mode_stack):
    """The picker reads at most the first part of a body of 64 MB, and its memory does not grow."""
    megabyte = b" " * 2**20
    expected = 413 if mode_stack.mode == "full" else 200

    async def send(count: int) -> int:
        length = [f"content-length: {count * len(megabyte) + len(BODY)}"]
        return await deliver(mode_stack, length, [BODY[:1], *[megabyte] * count, BODY[1:]])

    assert await send(1) == expected
    before = rss(mode_stack)
    assert await send(64) == expected
    assert await quiet(http, mode_stack)
    assert rss(mode_stack) - before < RSS_TOLERANCE
