"""Two pools on separate replicas, with and without a picker: no answer comes from a wrong pool."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from support.traffic import eventually, metric
from support.two_pools import CHAT, ENGINES, HUGE, LARGE, MODELS, SMALL, World, message, started
from tidegate_api.names import REASON_HEADER
from xds_server.resources.filters.scripts import LATE_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiohttp

SLOW = 200_000
"""Bytes of a body that comes slowly; more than ``peek_bytes``."""

pytestmark = pytest.mark.usefixtures("demo_extra")


@pytest.fixture(scope="module")
async def healthy(http: aiohttp.ClientSession) -> AsyncIterator[World]:
    """Run a stack whose picker lives."""
    async with AsyncExitStack() as exit_:
        yield (await started(exit_, http))[0]


@pytest.fixture(scope="module")
async def alone(http: aiohttp.ClientSession) -> AsyncIterator[World]:
    """Run a stack whose picker is dead."""
    async with AsyncExitStack() as exit_:
        world, _ = await started(exit_, http)
        await world.picker_gone()
        yield world


FORMS = ["by_path", "chat", "unary", "stream"]
CASES = [("small", SMALL, False), ("large", LARGE, False), ("gzip", 5000, True)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("size", "packed"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
async def test_a_picker_finds_every_pool(
    healthy: World, form: str, size: int, packed: bool
) -> None:
    """All forms are right, compressed or not."""
    for pool, model in MODELS.items():
        assert await getattr(healthy, form)(model, size, packed=packed) == pool


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("size", "packed"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
async def test_without_a_picker_no_pool_is_wrong(
    alone: World, form: str, size: int, packed: bool
) -> None:
    """Envoy reads the model itself; what it cannot read is refused, never guessed."""
    refusals = {
        "chat": "no-picker",
        "unary": "StatusCode.UNAVAILABLE",
        "stream": "StatusCode.UNAVAILABLE",
    }
    for pool, model in MODELS.items():
        answered = await getattr(alone, form)(model, size, packed=packed)
        assert answered == (refusals[form] if packed and form != "by_path" else pool)


async def test_without_a_picker_a_slow_upload_waits_for_none(alone: World) -> None:
    """Envoy reads the model once all is there, which is the time of the client and of no picker."""
    for pool, model in MODELS.items():
        body = b'{"model": "%s", "pad": "%s"}' % (model.encode(), b"x" * SLOW)

        async def halves(body: bytes = body) -> AsyncIterator[bytes]:
            yield body[: SLOW // 2]
            await asyncio.sleep(2 * LATE_MS / 1000)
            yield body[SLOW // 2 :]

        headers = {"content-type": "application/json", "content-length": str(len(body))}
        url = alone.stack.http_url + CHAT
        async with alone.http.post(url, data=halves(), headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            assert (await answer.json())["replica"] == pool


@pytest.mark.parametrize("path", ENGINES)
async def test_engines_forms_reach_the_pool_of_their_model(
    healthy: World, alone: World, path: str
) -> None:
    """With a picker and without one; an adapter behind the model's name changes nothing."""
    for world in (healthy, alone):
        for pool, model in MODELS.items():
            for name in (model, model + ":sql"):
                body = {"input": "x", "messages": [], "query": "x", "model": name}
                assert (await world.post(path, body))[:2] == (200, pool), (world, name)


@pytest.mark.parametrize("path", ENGINES)
async def test_engines_forms_are_refused_in_their_dialect(
    healthy: World, alone: World, path: str
) -> None:
    """The picker refuses, or Envoy without one, with the same answer."""
    anthropic = path.endswith("/messages")
    kinds = {
        404: "not_found_error" if anthropic else "invalid_request_error",
        503: "overloaded_error" if anthropic else "server_error",
    }
    asked = [(healthy, 404, False), (alone, 404, False), (alone, 503, True)]
    for world, expected, packed in asked:
        status, _, (body, _) = await world.post(path, {"model": "missing"}, packed=packed)
        assert (status, body["error"]["type"]) == (expected, kinds[expected])
        assert (body.get("type") == "error") is anthropic
        assert ("code" in body["error"]) is not anthropic


async def test_a_body_above_max_body_is_never_guessed(healthy: World, alone: World) -> None:
    """The picker reads the first part of a call; Envoy alone needs all of a message.

    Of a stream Envoy reads the first message, which may be larger.
    """
    refused = {"chat": "too-large"}
    for pool, model in MODELS.items():
        for form in FORMS:
            answered = await getattr(healthy, form)(model, HUGE, packed=False)
            assert answered == refused.get(form, pool), form
            answered = await getattr(alone, form)(model, HUGE, packed=False)
            expected = {**refused, "unary": "StatusCode.UNAVAILABLE"}.get(form, pool)
            assert answered == expected, form


async def test_a_refusal_says_what_to_do(alone: World) -> None:
    """The reason, the time to wait and the header that helps, in the caller's dialect."""
    status, reason, (body, headers) = await alone.post(CHAT, {"model": "other"}, packed=True)
    assert (status, reason, headers["Retry-After"]) == (503, "no-picker", "1")
    assert "tidegate-model" in body["error"]["message"]
    assert body["error"]["code"] == "no-picker"
    status, reason, (body, _) = await alone.post(CHAT, {"model": "missing"})
    assert (status, reason, body["error"]["code"]) == (404, "unknown-model", "unknown-model")
    async with grpc.aio.insecure_channel(alone.stack.grpc_address) as channel:
        for raw, code, word in (
            (message("other", b"x" * HUGE), grpc.StatusCode.UNAVAILABLE, "no-picker"),
            (message("missing"), grpc.StatusCode.NOT_FOUND, "unknown-model"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(UNARY)(raw)
            error = caught.value
            assert error.code() is code
            trailers = dict([*(error.initial_metadata() or ()), *(error.trailing_metadata() or ())])
            assert trailers[REASON_HEADER] == word
            assert "{" not in (error.details() or "")


UNARY = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
LATE = b'{"messages":[{"role":"user","content":"' + b"x" * 1_000_000 + b'"}],"model":"other"}'
CHATS = {
    "twice": (b'{"model":"toy-llm","model":"other"}', {"two"}),
    "nested": (b'{"x":{"model":"other"},"model":"toy-llm"}', {"one"}),
    "nested only": (b'{"x":{"model":"other"}}', {"one"}),
    "escaped": (b'{"mod\\u0065l":"oth\\u0065r"}', {"two"}),
    "late": (LATE, {"two"}),
    "an adapter": (b'{"model":"other:lora"}', {"two"}),
    "a list": (b'["model","other"]', {"one", 400, 503}),
    "a number": (b'{"model":7}', {"one", 400, 404, 503}),
    "nothing": (b'{"model":null}', {"one", 400}),
    "an object": (b'{"model":{"model":"other"}}', {"one", 400}),
    "cut": (b'{"model":"other"', {400, 503}),
    "ended by a zero": (b'{"model":"other\\u0000"}', {400, 404}),
    "a header within": (b'{"model":"other\\r\\nx-tidegate-pool: two"}', {404}),
    "an adapter with a header": (b'{"model":"other:x\\r\\nx-evil: 1"}', {"two", 400, 404}),
    "very long": (b'{"model":"' + b"other" * 10_000 + b'"}', {"one", 400, 404}),
    "deep": (b'{"model":"other","x":' + b"[" * 30_000 + b"]" * 30_000 + b"}", {"two", 400, 503}),
    "empty": (b"", {"one", 400}),
}


@pytest.mark.parametrize("name", CHATS)
async def test_a_hostile_chat_reaches_no_wrong_pool(
    healthy: World, alone: World, name: str
) -> None:
    """Envoy and the picker read the same from a body."""
    raw, allowed = CHATS[name]
    for world in (healthy, alone):
        status, who, _ = await world.post(CHAT, raw)
        assert (who if status == 200 else status) in allowed


async def test_a_compressed_bomb_is_not_unpacked(healthy: World, alone: World) -> None:
    """A hundred megabytes in a hundred kilobytes: refused, and both go on."""
    raw = b'{"model":"other","x":"' + b"0" * 100_000_000 + b'"}'
    assert (await alone.post(CHAT, raw, packed=True))[:2] == (503, "no-picker")
    status, who, _ = await healthy.post(CHAT, raw, packed=True)
    assert (status, who) == (200, "two") or status in {400, 413, 503}  # 413 is the replica's
    assert await healthy.chat("other", SMALL, packed=False) == "two"


NOTHING_ELSE = service_pb2.ModelInferRequest(raw_input_contents=[b"x" * 50_000]).SerializeToString()
CALLS = {
    "twice": (message("toy-llm") + message("other"), {"two"}),
    "late": (NOTHING_ELSE + message("other"), {"two"}),
    "no name": (message(""), {"one"}),
    "no message": (b"", {"one"}),
    "an integer first": (b"\x08\x01" + message("other"), {"two", 3, 5}),
    "no protobuf": (b"\xff\xff\xff\xff", {"one", 3, 13}),
    "not UTF-8": (b"\x0a\x02\xff\xfe", {3, 5, 13}),
    "a header within": (message("other\r\nx: y"), {5}),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_hostile_call_reaches_no_wrong_pool(
    healthy: World, alone: World, name: str
) -> None:
    """Unary calls and streams, with and without a picker."""
    raw, allowed = CALLS[name]
    for world in (healthy, alone):
        async with grpc.aio.insecure_channel(world.stack.grpc_address) as channel:
            for stream in (False, True):
                got: Any
                try:
                    if stream:
                        call = channel.stream_stream(STREAM)()
                        await call.write(raw)
                        answer = service_pb2.ModelStreamInferResponse.FromString(await call.read())
                        got = answer.infer_response.model_name
                        await call.done_writing()
                    else:
                        answer = service_pb2.ModelInferResponse.FromString(
                            await channel.unary_unary(UNARY)(raw)
                        )
                        got = answer.model_name
                except grpc.aio.AioRpcError as error:
                    got = error.code().value[0]
                assert got in allowed, (stream, got)


async def test_clients_cannot_name_the_model_for_envoy(alone: World) -> None:
    """The headers by which Envoy matches again are its own."""
    url = alone.stack.http_url + CHAT
    for header in ("x-tidegate-model", "x-tidegate-unpicked"):
        headers = {header: "other", "content-type": "application/json"}
        async with alone.http.post(url, json={"model": "toy-llm"}, headers=headers) as answer:
            assert (await answer.json())["replica"] == "one"


async def test_open_streams_outlive_a_picker(http: aiohttp.ClientSession) -> None:
    """Each of many answers comes from the stream's pool, while the picker dies and comes back."""
    async with AsyncExitStack() as exit_:
        world, replicas = await started(exit_, http)
        over = asyncio.Event()
        answers: dict[str, list[str]] = {pool: [] for pool in MODELS}

        async def talk(pool: str) -> None:
            async with grpc.aio.insecure_channel(world.stack.grpc_address) as channel:
                call = channel.stream_stream(STREAM)()
                while not over.is_set():
                    await call.write(message(MODELS[pool]))
                    answer = service_pb2.ModelStreamInferResponse.FromString(await call.read())
                    answers[pool].append(answer.infer_response.model_name)
                    await asyncio.sleep(0.05)
                await call.done_writing()

        async with asyncio.TaskGroup() as tasks:
            for pool in MODELS:
                tasks.create_task(talk(pool))
            assert await eventually(lambda: _all(answers))
            await world.stack.kill_picker()
            for _ in range(20):
                for pool, model in MODELS.items():
                    for form in FORMS:
                        answered = await getattr(world, form)(model, SMALL, packed=False)
                        assert answered == pool or answered.startswith("StatusCode.UNAV"), form
            await world.stack.start_picker()
            for pool, model in MODELS.items():
                for form in FORMS:
                    assert await getattr(world, form)(model, SMALL, packed=False) == pool
            over.set()
        for pool, names in answers.items():
            assert set(names) == {pool}
        assert not [one for each in replicas for one in each.headers if "x-tidegate-model" in one]


async def _all(answers: dict[str, list[str]]) -> bool:
    return all(answers.values())


async def test_duplex_reads_what_envoy_cannot(http: aiohttp.ClientSession) -> None:
    """The picker takes compressed and very large first messages; without it they are refused."""
    async with AsyncExitStack() as exit_:
        world, _ = await started(exit_, http, first_message="duplex")
        for pool, model in MODELS.items():
            for size, packed in ((SMALL, False), (5000, True), (HUGE, False)):
                assert await world.stream(model, size, packed=packed) == pool
        await world.picker_gone()  # until Envoy has noticed, such streams fail
        for pool, model in MODELS.items():
            assert await world.stream(model, SMALL, packed=False) == pool
            assert await world.stream(model, LARGE, packed=False) == pool
            for size, packed in ((5000, True), (HUGE, False)):
                assert await world.stream(model, size, packed=packed) == "StatusCode.UNAVAILABLE"


async def test_a_pool_of_envoys_asks_no_picker(http: aiohttp.ClientSession) -> None:
    """Its requests are told by their bodies before the picker; those of the other pool are not."""

    async def picks(pool: str) -> float:
        name = "tidegate_picker_picks_total"
        return await metric(http, world.stack.picker_metrics, name, pool=pool)

    async with AsyncExitStack() as exit_:
        world, _ = await started(exit_, http, second={"policy": "envoy"})
        before = await picks("one")
        for size in (SMALL, LARGE):
            for form in FORMS:
                for pool, model in MODELS.items():
                    answered = await getattr(world, form)(model, size, packed=False)
                    assert answered == pool, form
        assert await picks("two") == 0
        assert await picks("one") == before + 8
        # What Envoy cannot read goes through the picker, which knows the pool too.
        for form in ("chat", "unary"):
            assert await getattr(world, form)("other", 5000, packed=True) == "two"
        await world.picker_gone()
        for form in FORMS:
            for pool, model in MODELS.items():
                assert await getattr(world, form)(model, SMALL, packed=False) == pool
