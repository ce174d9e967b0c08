"""``first_message: duplex`` through a real Envoy: streams are routed by their first message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import tritonclient.grpc.aio as triton_grpc
from tritonclient.grpc import service_pb2

from support.traffic import (
    counter_inputs,
    eventually,
    fresh_prompt,
    llm_inputs,
    metric,
    vision_inputs,
)
from tidegate_api.names import REASON_HEADER

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
DUPLEX = {"routing": {"first_message": "duplex"}}


@pytest.fixture(scope="module", params=["grpc", "nghttp2"])
async def stack(request, shared, new_module_stack):
    """Take a stack per transport, whose pools all read the first message."""
    fleet = {"pools": {"llm": DUPLEX, "counter": DUPLEX}}
    if request.param != "grpc":
        yield await new_module_stack(fleet=fleet, transport=request.param)
        return
    async with shared.having(fleet) as lent:
        yield lent


async def quiet(http, stack) -> bool:
    """Wait until the picker has neither a request nor a stream."""

    async def look() -> bool:
        names = ("tidegate_picker_in_flight", "tidegate_picker_open_streams")
        return not any([await metric(http, stack.picker_metrics, name) for name in names])

    return await eventually(look)


async def picked(http, stack, pool: str) -> float:
    """Return the number of picks in a pool."""
    return await metric(http, stack.picker_metrics, "tidegate_picker_picks_total", pool=pool)


async def drained(answers) -> list[Any]:
    """Read the stream to its end; return the errors."""
    return [error async for _, error in answers]


async def test_a_client_that_keeps_its_side_open_is_answered(http, stack):
    """The first message triggers the decision; two more messages pass through unchanged."""
    go_on, close = asyncio.Event(), asyncio.Event()
    before = await picked(http, stack, "llm")

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "toy-llm", "inputs": llm_inputs(fresh_prompt(), 2)}
        await go_on.wait()
        for _ in range(2):
            yield {"model_name": "toy-llm", "inputs": llm_inputs(fresh_prompt(3000), 2)}
        await close.wait()

    async with triton_grpc.InferenceServerClient(stack.grpc_address) as client:
        answers = client.stream_infer(requests())
        for _ in range(2):
            result, error = await answers.__anext__()
            assert error is None
            assert result is not None
        assert await metric(http, stack.picker_metrics, "tidegate_picker_in_flight") == 1
        go_on.set()
        for _ in range(4):
            assert (await answers.__anext__())[1] is None
        close.set()
        with pytest.raises(StopAsyncIteration):
            await answers.__anext__()
    assert await picked(http, stack, "llm") == before + 1
    assert await quiet(http, stack)


async def test_the_first_message_names_the_pool(http, stack):
    """Without a header, a stream reaches the pool of the model in its first message."""
    before = await picked(http, stack, "vision")

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "vision", "inputs": vision_inputs()}

    async with triton_grpc.InferenceServerClient(stack.grpc_address) as client:
        async for _, error in client.stream_infer(requests()):
            assert error is None
    assert await picked(http, stack, "vision") == before + 1
    assert await quiet(http, stack)


async def test_sequences_keep_their_replica_without_a_header(http, stack):
    """All streams of a sequence reach the replica with its state."""
    async with triton_grpc.InferenceServerClient(stack.grpc_address) as client:
        for sequence in (901, 902, 903):
            total = 0
            for turn in range(4):

                async def requests(turn=turn, sequence=sequence) -> AsyncIterator[dict[str, Any]]:
                    yield {
                        "model_name": "counter",
                        "inputs": counter_inputs(turn + 1),
                        "sequence_id": sequence,
                        "sequence_start": turn == 0,
                        "sequence_end": turn == 3,
                    }

                total += turn + 1
                async for result, error in client.stream_infer(requests()):
                    assert error is None, error
                    assert int(result.as_numpy("total")[0]) == total
    assert await quiet(http, stack)


async def test_a_large_first_message_passes_whole(http, stack):
    """A first message of 2 MB is routed by its first part and arrives complete."""
    text = fresh_prompt(2_000_000)

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "toy-llm", "inputs": llm_inputs(text, 1)}

    async with triton_grpc.InferenceServerClient(stack.grpc_address) as client:
        answers = [pair async for pair in client.stream_infer(requests())]
    assert answers
    # Triton's own bound on prompts may refuse it; what matters is that it came whole.
    assert all("parse" not in str(error) for _, error in answers)
    assert await quiet(http, stack)


async def test_an_unknown_model_is_refused(http, stack):
    """The picker returns NOT_FOUND with a reason while the client's side is still open."""
    async with grpc.aio.insecure_channel(stack.grpc_address) as channel:
        call = channel.stream_stream(STREAM)()
        await call.write(service_pb2.ModelInferRequest(model_name="missing").SerializeToString())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    metadata = [*(caught.value.initial_metadata() or ()), *(caught.value.trailing_metadata() or ())]
    assert (REASON_HEADER, "unknown-model") in metadata
    assert await quiet(http, stack)


async def test_an_empty_stream_and_a_client_that_leaves_first(http, stack):
    """A stream without messages, half-closed or cancelled, leaves no state."""
    async with grpc.aio.insecure_channel(stack.grpc_address) as channel:
        call = channel.stream_stream(STREAM)()
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        waiting = channel.stream_stream(STREAM)()
        await waiting.wait_for_connection()

        async def open_streams() -> bool:
            name = "tidegate_picker_open_streams"
            return await metric(http, stack.picker_metrics, name) == 1

        assert await eventually(open_streams)
        waiting.cancel()
    assert await quiet(http, stack)


async def test_what_the_loss_of_the_picker_costs(new_stack):
    """An open stream breaks immediately with its picker; duplex is documented as not fail-open.

    A stream that begins when Envoy has noticed is answered by its own balancing.
    """
    stack = await new_stack(fleet={"pools": {"llm": DUPLEX}})
    never = asyncio.Event()

    async def requests(*, keep_open: bool) -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "toy-llm", "inputs": llm_inputs(fresh_prompt(), 2)}
        if keep_open:
            await never.wait()

    async with triton_grpc.InferenceServerClient(stack.grpc_address) as client:
        answers = client.stream_infer(requests(keep_open=True))
        await answers.__anext__()
        await stack.kill_picker()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(drained(answers), 60)
        assert caught.value.code() in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}

        async def served() -> bool:
            try:
                errors = await drained(client.stream_infer(requests(keep_open=False)))
            except grpc.aio.AioRpcError:  # Envoy has not noticed yet
                return False
            return bool(errors) and not any(errors)

        assert await eventually(served)
