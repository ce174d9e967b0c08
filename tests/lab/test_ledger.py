"""The picker's ledger is exact in every mode: charged at the pick, released at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import tritonclient.grpc.aio as triton_grpc

from support.replicas import Replica
from support.traffic import GENERATE, eventually, fresh_prompt, llm_inputs, metric, vision_inputs

BODY_MODES = ("none", "peek", "full")
HELD = "/v2/models/held/generate_stream"


@pytest.fixture
async def ends(held):
    """Return what ends the answers of the replica ``held``; it is set after the test."""
    held.ends = asyncio.Event()
    yield held.ends
    held.ends.set()


@pytest.fixture(scope="module")
async def held():
    """Run a replica whose answers begin at once and end when a test says so."""
    async with Replica("held", gaps_s=(0.0,)).serve() as replica:
        yield replica


@pytest.fixture(scope="module", params=BODY_MODES)
async def mode_stack(request, shared, held):
    """Read bodies in one mode, and add a pool of the held replica."""

    def change(fleet) -> None:
        health = dict(fleet["pools"][0]["health"])
        match = {"models": ["held"]}
        pool = {"name": "held", "match": match, "endpoints": [held.endpoint()], "health": health}
        fleet["pools"].append(pool)
        for each in fleet["pools"]:
            each.setdefault("routing", {})["body"] = request.param

    async with shared.having(change) as stack:
        yield stack


async def in_flight(http, stack) -> float:
    """Return the requests in the ledger."""
    return await metric(http, stack.picker_metrics, "tidegate_picker_in_flight")


async def holds(http, stack, count: int) -> bool:
    """Wait until the ledger contains ``count`` requests."""

    async def look() -> bool:
        return await in_flight(http, stack) == count

    return await eventually(look)


async def test_a_streamed_answer_counts_to_its_end(http, mode_stack, ends):
    """The ledger contains the request while its answer comes, and is empty after the end."""
    async with http.post(mode_stack.http_url + HELD, json={"text_input": "tide"}) as answer:
        assert answer.status == 200
        assert await answer.content.readany()
        assert await holds(http, mode_stack, 1)
        ends.set()
        assert (await answer.text()).endswith("last")
    assert await holds(http, mode_stack, 0)


async def test_an_aborted_request_stops_counting(http, mode_stack, ends):
    """The charge of a client that disconnects is released before the answer has ended."""
    answer = await http.post(mode_stack.http_url + HELD, json={"text_input": "tide"})
    assert await answer.content.readany()
    assert await holds(http, mode_stack, 1)
    answer.close()
    assert await holds(http, mode_stack, 0)
    assert not ends.is_set()


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


MESSAGES = {
    "none": {"answer": 1, "stream": 1, "unary": 2, "bidirectional": 2},
    "peek": {"answer": 2, "stream": 2, "unary": 2, "bidirectional": 2},
    "full": {"answer": 2, "stream": 2, "unary": 2, "bidirectional": 2},
}
"""Messages of Envoy to the picker for one request. Beside its head and, where it is read, its body
there are the trailers of gRPC's answers where nothing else keeps Envoy's stream open."""


async def sent(http, stack) -> int:
    """Return the messages that Envoy has sent to the picker."""
    async with http.get(f"http://{stack.envoy_admin}/stats?filter=stream_msgs_sent") as page:
        return sum(int(line.rpartition(":")[2]) for line in (await page.text()).splitlines())


async def test_a_request_takes_no_more_messages_than_it_needs(http, mode_stack, ends, request):
    """Each costs the picker as much as a request's parsing."""
    ends.set()
    mode = request.node.callspec.params["mode_stack"]

    async def answer() -> None:
        body = {"text_input": fresh_prompt(), "max_tokens": 2}
        async with http.post(f"{mode_stack.http_url}{GENERATE}", json=body) as answered:
            assert (await answered.read(), answered.status)[1] == 200

    async def stream() -> None:
        async with http.post(mode_stack.http_url + HELD, json={"text_input": "tide"}) as answered:
            assert (await answered.read(), answered.status)[1] == 200

    async def unary() -> None:
        async with triton_grpc.InferenceServerClient(mode_stack.grpc_address) as client:
            await client.infer("vision", vision_inputs())

    async def bidirectional() -> None:
        async def requests() -> AsyncIterator[dict[str, object]]:
            yield {"model_name": "toy-llm", "inputs": llm_inputs(fresh_prompt(), 2)}

        async with triton_grpc.InferenceServerClient(mode_stack.grpc_address) as client:
            async for _ in client.stream_infer(requests()):
                pass

    found = {}
    for call in (answer, stream, unary, bidirectional):
        before = await sent(http, mode_stack)
        await call()
        found[call.__name__] = await sent(http, mode_stack) - before
    assert found == MESSAGES[mode]
