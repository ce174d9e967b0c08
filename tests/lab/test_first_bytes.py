"""What a picker learns as the first byte of a real Triton's answers.

One pool whose two replicas are one Triton: itself, which sends headers with its first message, and
behind a front that sends headers at once, as servers on uvicorn do.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support import replicas as test_replicas
from support.replicas import PATIENT
from support.traffic import eventually, picker_state
from tidegate.stack.local import LocalStack
from tidegate.stack.tritons.fleet import Tritons

STAGED = "/v2/models/staged"
FIRST_S = 0.4
LATER_S = 1.5
ROUNDED = 1.01
"""Samples are read from a mean that the picker's page rounds."""
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"connection: close\r\n\r\n"
)


@asynccontextmanager
async def at_once(inside: str):
    """Serve a front that answers inferences with its own headers; yield its ``ip:port``."""
    host, _, port = inside.rpartition(":")

    async def carry(reader, writer):
        back, there = await asyncio.open_connection(host, int(port))
        try:
            asked = await reader.readuntil(b"\r\n\r\n")
            length = asked.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            there.write(asked + await reader.readexactly(int(length or 0)))
            if asked.startswith(b"POST "):
                writer.write(HEAD)
                await back.readuntil(b"\r\n\r\n")
            else:
                writer.write(await back.readuntil(b"\r\n\r\n"))
            while data := await back.read(65_536):
                writer.write(data)
                if data.endswith(b"0\r\n\r\n"):
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            there.close()

    server = await asyncio.start_server(carry, "127.0.0.1")
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()


@pytest.fixture(scope="module")
async def stack(demo_extra):  # noqa: ARG001 - skips first
    """Run one stack over the Triton and its front; the header ``x-kind`` names the variant."""
    models = Path(test_replicas.__file__).with_name("models")
    async with (
        Tritons(1, models=("staged",), source=models) as tritons,
        at_once(tritons.replica("r1").http) as front,
    ):

        def over(fleet):
            (pool,) = fleet["pools"]
            addresses = {"direct": tritons.replica("r1").http, "front": front}
            pool["match"] = {"models": ["staged"]}
            pool["variants"] = [
                {"name": name, "match": {"headers": {"x-kind": name}}} for name in addresses
            ]
            pool["endpoints"] = [
                {"id": name, "http": address, "variant": name}
                for name, address in addresses.items()
            ]
            pool["slow_start"] = {"window": 0}
            pool["health"] = {"interval": "60s", "timeout": PATIENT}
            fleet["pickers"]["timeout"] = PATIENT

        async with LocalStack(
            replicas=(), models=("toy-llm",), fleet=over, transport="nghttp2"
        ) as running:
            yield running


async def learned(http, stack, name):
    """Return the number of samples of a replica, and their mean in seconds."""
    state = await picker_state(http, stack)
    answers = state["router"]["pools"]["llm"]["endpoints"][name]["answers"]
    return answers["answers"], answers["first_byte_s"]


async def sampled(http, stack, name, verb, at_s):
    """Send a request to a variant.

    Return the sample that the picker takes of it, and how long the client waited for the first
    message, seconds: a sample of anything that is later is longer.
    """
    clock = asyncio.get_running_loop().time
    count, mean_s = await learned(http, stack, name)
    sent = {"text_input": "tide", "at_s": at_s}
    url = f"{stack.http_url}{STAGED}/{verb}"
    began = clock()
    async with http.post(url, json=sent, headers={"x-kind": name}) as answer:
        assert answer.status == 200
        text = await answer.content.readany()
        waited_s = clock() - began
        text += await answer.read()
        assert text.count(b"message") == len(at_s)

    async def known():
        return (await learned(http, stack, name))[0] == count + 1

    assert await eventually(known)
    now_s = (await learned(http, stack, name))[1]
    # The mean is that of logarithms, and of few values a plain one.
    sample_s = now_s if not count else now_s ** (count + 1) / mean_s**count
    return sample_s, waited_s


@pytest.mark.parametrize("name", ["direct", "front"])
async def test_the_first_message_of_a_stream_is_its_first_byte(http, stack, name):
    """Neither the headers, which the front sends before, nor the end."""
    first_s, waited_s = await sampled(http, stack, name, "generate_stream", [FIRST_S, LATER_S])
    assert FIRST_S - 0.01 < first_s < waited_s * ROUNDED


async def test_an_answer_that_is_not_streamed_begins_with_itself(http, stack):
    """It comes when the model is done."""
    first_s, waited_s = await sampled(http, stack, "direct", "generate", [FIRST_S])
    assert FIRST_S - 0.01 < first_s < waited_s * ROUNDED


async def test_calls_that_are_no_inference_are_no_samples(http, stack):
    """Clients ask for readiness and metadata before each request; these come in a millisecond."""
    before = await learned(http, stack, "direct")
    for _ in range(3):
        for path in (STAGED, f"{STAGED}/ready"):
            async with http.get(stack.http_url + path, headers={"x-kind": "direct"}) as answer:
                assert answer.status == 200
                await answer.read()
    first_s, waited_s = await sampled(http, stack, "direct", "generate", [FIRST_S])
    assert (await learned(http, stack, "direct"))[0] == before[0] + 1
    assert FIRST_S - 0.01 < first_s < waited_s * ROUNDED
