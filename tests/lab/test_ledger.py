"""The picker's ledger is exact in every mode: charged at the pick, released at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import tritonclient.grpc.aio as triton_grpc

from support.traffic import (
    GENERATE_STREAM,
    PATIENCE_S,
    eventually,
    fresh_prompt,
    llm_inputs,
    metric,
    vision_inputs,
)

BODY_MODES = ("none", "peek", "full")
LEAST_S = 2.0
"""Even alone on an engine 4,000 tokens take longer: 5.5 ms each, ten times faster here."""


@pytest.fixture(scope="module", params=BODY_MODES)
async def mode_stack(request, new_module_stack):
    """One stack per body mode."""
    return await new_module_stack(body=request.param)


async def in_flight(http, stack) -> float:
    """Return the requests in the ledger."""
    return await metric(http, stack.picker_metrics, "tidegate_picker_in_flight")


async def holds(http, stack, count: int, within_s: float = PATIENCE_S) -> bool:
    """Wait until the ledger contains ``count`` requests."""

    async def look() -> bool:
        return await in_flight(http, stack) == count

    return await eventually(look, within_s)


def long_answer(tokens: int) -> dict[str, object]:
    """Return a request with a long answer (about 1 ms per token here)."""
    return {"text_input": fresh_prompt(), "max_tokens": tokens, "stream": True}


async def test_a_streamed_answer_counts_to_its_end(http, mode_stack):
    """The ledger contains the request while tokens arrive, and is empty after the last one."""
    url = mode_stack.http_url + GENERATE_STREAM
    seen = False
    for _ in range(4):  # a busy machine may look too late
        async with http.post(url, json=long_answer(1500)) as answer:
            assert answer.status == 200
            await answer.content.readline()
            seen = await holds(http, mode_stack, 1, 0.8)
            rest = await answer.content.read()
            assert rest
        assert await holds(http, mode_stack, 0)
        if seen:
            break
    assert seen


async def test_an_aborted_request_stops_counting(http, mode_stack):
    """The charge of a client that disconnects is released before the answer could have ended."""
    url = mode_stack.http_url + GENERATE_STREAM
    loop = asyncio.get_running_loop()
    took = []
    for _ in range(4):  # a busy machine may look too late
        began = loop.time()
        answer = await http.post(url, json=long_answer(4000))
        await answer.content.readline()
        seen = await holds(http, mode_stack, 1, 1.0)
        answer.close()
        assert await holds(http, mode_stack, 0)
        took.append(loop.time() - began)
        if seen and took[-1] < LEAST_S:
            break
    assert min(took) < LEAST_S
    assert seen


async def test_a_bidirectional_stream_counts_as_long_as_it_is_open(http, mode_stack):
    """ModelStreamInfer is charged until the client half-closes and the answers end."""
    close = asyncio.Event()

    async def requests() -> AsyncIterator[dict[str, object]]:
        yield {"model_name": "toy-llm", "inputs": llm_inputs(fresh_prompt(), 2)}
        await close.wait()

    async with triton_grpc.InferenceServerClient(mode_stack.grpc_address) as client:
        answers = client.stream_infer(requests())
        for _ in range(2):
            await answers.__anext__()
        assert await holds(http, mode_stack, 1)
        close.set()
        with pytest.raises(StopAsyncIteration):
            await answers.__anext__()
        assert await holds(http, mode_stack, 0)


async def test_a_unary_call_leaves_nothing_behind(http, mode_stack):
    """After gRPC calls, including a failed one, the ledger is empty."""
    async with triton_grpc.InferenceServerClient(mode_stack.grpc_address) as client:
        for _ in range(5):
            await client.infer("vision", vision_inputs())
        with pytest.raises(triton_grpc.InferenceServerException):
            await client.infer("vision", llm_inputs("not an image", 1))
    assert await holds(http, mode_stack, 0)
