"""gRPC streams of unmodified clients on one pool of several models, each on some of the replicas.

Envoy reads the model of a stream's first message before it asks the picker, by default.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import orjson
import pytest
import tritonclient.grpc.aio as triton_grpc
from tritonclient.grpc import service_pb2

from support.envoy_pages import placed
from support.named_replicas import named_replicas
from support.placed_models import PlacedModels
from support.service_process import ready_models
from support.traffic import eventually, metric, vision_inputs
from tidegate.stack.local import LocalStack
from tidegate.stack.tritons.replica import TritonReplica
from tidegate_api.names import POOL_HEADER
from xds_server.fleet.rules.bodies import FIRST_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.timeout(240)

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
NAMES = [f"s{number}" for number in range(8)]
PLACES = {name: ("r1", "r2", "r3")[number % 3] for number, name in enumerate(NAMES)}
"""Each model is on one of three replicas."""
REFUSING = "127.0.0.1:1"
"""An address that refuses connections."""
UNLISTED = "s-unlisted"
"""A model that the fleet file does not name; it is on r1."""


def one_pool(fleet: dict[str, Any]) -> None:
    """Replace all pools by one of all the models; ``first_message`` is not set."""
    (vision,) = [pool for pool in fleet["pools"] if pool["match"]["models"] == ["vision"]]
    endpoints = [dict(endpoint, variant="stable") for endpoint in vision["endpoints"]]
    fleet["listener"]["client_headers"] = [POOL_HEADER]
    fleet["pools"] = [
        {
            "name": "many",
            "match": {"models": [*NAMES, "vision"]},
            "variants": [{"name": "stable", "weight": 100}],
            "endpoints": endpoints,
            "routing": {"policy": "least-in-flight"},
            "health": dict(vision["health"]),
            "timeouts": {"idle": "4s"},
        }
    ]


@pytest.fixture(scope="module")
async def models(http, tritons):
    """Return the models, each loaded on one replica."""
    async with PlacedModels(http, tritons, [*NAMES, UNLISTED]) as placed:
        await placed.change({**dict.fromkeys(PLACES.items(), True), (UNLISTED, "r1"): True})
        yield placed


@pytest.fixture(scope="module")
async def stack(http, models, new_module_stack):  # noqa: ARG001 - loaded first
    """Run a stack whose picker has two workers, which know where the models are."""
    stack = await new_module_stack(models=("vision",), fleet=one_pool, workers=2)
    assert await eventually(partial(known, http, stack))
    assert await eventually(partial(told, http, stack))
    return stack


async def known(http, stack) -> bool:
    """Return whether each worker knows where each model is."""
    for address in (stack.picker_metrics, *stack.addresses.more_picker_metrics):
        async with http.get(f"http://{address}/debug/state") as answer:
            ready = ready_models(orjson.loads(await answer.read()))
        if not all(name in ready.get(at, ()) for name, at in PLACES.items()):
            return False
    return True


async def told(http, stack) -> bool:
    """Return whether Envoy has been told where each model is."""
    found = await placed(http, stack, "many")
    return found.keys() == set(PLACES.values()) and all(
        each & set(NAMES) == {name for name in NAMES if PLACES[name] == at}
        for at, lists in found.items()
        for each in lists
    )


async def talk(
    address: str, name: str, *, turns: int = 2, gate: asyncio.Event | None = None, **options: Any
) -> list[str]:
    """Stream requests, each after the answer to the one before; return the errors.

    Args:
        address: Where.
        name: The model.
        turns: Number of requests.
        gate: Awaited before the first request and before each further one.
        options: Options of the client's call.
    """
    answered: asyncio.Queue[None] = asyncio.Queue()

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for turn in range(turns):
            if turn:
                await answered.get()
            if gate is not None:
                await gate.wait()
            yield {"model_name": name, "inputs": vision_inputs()}

    errors, answers = [], 0
    async with triton_grpc.InferenceServerClient(address) as client:
        async for result, error in client.stream_infer(requests(), **options):
            if error is not None:
                errors.append(str(error))
            else:
                assert result.get_response().model_name == name
                answers += 1
            answered.put_nowait(None)
    assert len(errors) + answers == turns
    return errors


def wire(name: str) -> bytes:
    """Return a serialized request of a model."""
    request = service_pb2.ModelInferRequest(model_name=name)
    tensor = request.inputs.add(name="image", datatype="FP32", shape=[1, 3, 32, 32])
    tensor.contents.fp32_contents.extend([0.5] * (3 * 32 * 32))
    return bytes(request.SerializeToString())


async def read(call) -> Any:
    """Read one answer of a call."""
    return service_pb2.ModelStreamInferResponse.FromString(await call.read())


async def test_all_of_32_streams_reach_a_replica_with_their_model(stack):
    """Clients name the model in the message alone, wait for each answer, and half may compress."""
    drawn = random.Random(1).choices(NAMES, k=32)
    found = await asyncio.gather(
        *(
            talk(stack.grpc_address, name, compression_algorithm="gzip" if odd % 4 == 3 else None)
            for odd, name in enumerate(drawn)
        )
    )
    assert [errors for errors in found if errors] == []


async def test_a_header_that_names_the_pool_alone_is_enough(stack):
    """The model is read then, too, from plain and from compressed messages."""
    for packed in (None, "gzip"):
        for name in NAMES:
            headers = {POOL_HEADER: "many"}
            said = talk(
                stack.grpc_address, name, turns=1, headers=headers, compression_algorithm=packed
            )
            assert await said == []


async def test_a_later_message_of_another_model_is_answered_by_the_same_replica(stack):
    """The replica says that it lacks the model, and the stream goes on: nothing is lost."""
    other = next(name for name in NAMES if PLACES[name] != PLACES[NAMES[0]])
    async with grpc.aio.insecure_channel(stack.grpc_address) as channel:
        call = channel.stream_stream(STREAM)()
        for name in (NAMES[0], other, NAMES[0]):
            await call.write(wire(name))
            answer = await read(call)
            assert bool(answer.error_message) == (name == other)
            if name == other:
                assert "unknown model" in answer.error_message
            else:
                assert answer.infer_response.model_name == name
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_a_model_that_the_fleet_file_does_not_name_is_placed_too(stack):
    """A stream was never refused for it; replicas' indexes say where it is."""
    for _ in range(6):
        assert await talk(stack.grpc_address, UNLISTED, turns=1) == []


async def test_clients_that_are_slow_or_never_send_cost_no_picker(http, stack):
    """A stream without a message asks no picker: a late one is placed, the idle bound ends it."""

    async def none_is_open() -> bool:
        return await metric(http, stack.picker_metrics, "tidegate_picker_open_streams") == 0

    gate = asyncio.Event()
    slow = [asyncio.create_task(talk(stack.grpc_address, name, gate=gate)) for name in NAMES]
    async with grpc.aio.insecure_channel(stack.grpc_address) as channel:
        silent = channel.stream_stream(STREAM)()
        await silent.wait_for_connection()
        assert await talk(stack.grpc_address, NAMES[0]) == []
        assert await eventually(none_is_open)  # the last one of `talk` ends a little later
        gate.set()
        assert [await each for each in slow] == [[]] * len(NAMES)
        assert await silent.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_stream_without_a_message_is_told_so(stack):
    """There is no model in it: the one answer that differs from Triton's, which ends it with OK."""
    async with grpc.aio.insecure_channel(stack.grpc_address) as channel:
        call = channel.stream_stream(STREAM)()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "it is empty" in await call.details()


async def test_a_first_message_is_held_up_to_a_bound(stack):
    """One of 8 MB passes; above the bound the refusal says what to do."""
    for size in (8_000_000, FIRST_MESSAGE_BYTES + 1000):
        request = service_pb2.ModelInferRequest(model_name=NAMES[0])
        request.raw_input_contents.append(bytes(size))
        options = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(stack.grpc_address, options=options) as channel:
            call = channel.stream_stream(STREAM)()
            await call.write(request.SerializeToString())
            await call.done_writing()
            if size < FIRST_MESSAGE_BYTES:
                assert "expected 1 inputs" in (await read(call)).error_message
            else:
                assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert "too large" in await call.details()


async def test_streams_outlive_their_picker_and_others_are_placed_without_one(http, stack):
    """The picker is asked once per stream, so its death and its restart cost none."""
    async with grpc.aio.insecure_channel(stack.grpc_address) as channel:
        calls = [channel.stream_stream(STREAM)() for _ in NAMES]

        async def turn() -> None:
            for name, call in zip(NAMES, calls, strict=True):
                await call.write(wire(name))
                assert (await read(call)).infer_response.model_name == name

        await turn()
        await stack.kill_picker()
        await turn()

        async def in_use() -> bool:
            await turn()  # a stream that is idle for long is ended
            # Envoy's main thread shows an update before all its workers have it.
            return not any([await talk(stack.grpc_address, each) for each in NAMES])

        assert await eventually(in_use)
        for name in NAMES:
            await turn()
            assert await talk(stack.grpc_address, name) == []
        starting = asyncio.create_task(stack.start_picker())
        while not starting.done():
            await turn()
        await starting
        await turn()
        for call in calls:
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
    assert await eventually(partial(known, http, stack))
    for name in NAMES:
        assert await talk(stack.grpc_address, name) == []


async def test_a_stream_that_was_read_moves_on_from_a_refused_connection_whole(http):
    """Its first message, which Envoy held, arrives once, and no message twice."""
    async with named_replicas("one", "two") as (alive, dead):

        def over(fleet: dict[str, Any]) -> None:
            ends = [alive.endpoint(), {**dead.endpoint(), "grpc": REFUSING}]
            fleet["pools"] = [
                {
                    "name": "both",
                    "match": {"models": ["toy-llm", "other"]},
                    "endpoints": ends,
                    "routing": {"policy": "round-robin"},
                    "health": {"interval": "60s", "timeout": "20s", "repository": False},
                    "outlier": {"consecutive_failures": 1000},
                }
            ]

        known = TritonReplica(
            name="one",
            http=alive.http,
            grpc=alive.grpc,
            metrics=REFUSING,
            variant="stable",
            models={"toy-llm": ("1",)},
        )
        async with LocalStack(replicas=[known], models=("toy-llm",), fleet=over) as stack:
            sizes = []
            for number in range(8):
                request = service_pb2.ModelInferRequest(model_name="other", id=f"{number}")
                request.raw_input_contents.append(bytes(50_000))
                async with grpc.aio.insecure_channel(stack.grpc_address) as channel:
                    call = channel.stream_stream(STREAM)()
                    for _ in range(2):
                        await call.write(request.SerializeToString())
                        sizes.append(int((await read(call)).infer_response.id))
                    await call.done_writing()
                    assert await call.read() is grpc.aio.EOF
            assert set(sizes) == {len(request.SerializeToString())}
            assert alive.asked.count("ModelStreamInfer") == 8
            page = f"http://{stack.envoy_admin}/stats?format=json&filter=both/.*/grpc.upstream_rq_retry$"
            async with http.get(page) as answer:
                (retried,) = orjson.loads(await answer.read())["stats"]
            assert 0 < retried["value"] <= 8
