"""One request of a client is one request of a replica, whatever ends its body.

Each attack is a body that is itself a request, so that a second copy of it, behind the length of
one, is a request that no client sent: the recording replica would list it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager

import pytest

from support.recorder import Recorder
from support.replicas import PATIENT, stack_over
from support.smuggling import SMUGGLED, Attack, asked_for_the_body
from support.sockets import Raw, head
from support.traffic import GENERATE
from tidegate_api.names import STRIPPED_HEADERS

SHORT = "400ms"
"""Envoy's patience with a picker that the test stops."""


def forwarded(recorders):
    """Return the bodies that replicas got, and take them."""
    assert [one.faults for one in recorders] == [[] for _ in recorders]
    got = [each for one in recorders for each in one.got]
    for one in recorders:
        one.got.clear()
    # Envoy writes the version that is meant into the path.
    assert all(each.line.endswith("/generate HTTP/1.1") for each in got), got
    return [each.body for each in got]


@asynccontextmanager
async def world(body="peek", patience=PATIENT):
    """Run a stack over two recording replicas."""
    recorders = [Recorder("r1"), Recorder("r2")]
    async with stack_over(*recorders, body=body, patience=patience) as stack:
        for one in recorders:
            one.got.clear()  # the stack's own first request
        yield stack, recorders


@pytest.fixture(scope="module", params=["none", "peek", "full"])
async def usual(request):
    """Run a stack per body mode."""
    async with world(request.param) as (stack, recorders):
        yield stack, recorders, request.param


WAYS = {
    "at once": (),
    "after the head": ("head",),
    "after the data": ("head", "data"),
}


@pytest.mark.parametrize("length", [True, False], ids=["length", "no-length"])
@pytest.mark.parametrize("way", WAYS)
async def test_trailers_double_no_body(usual, way, length):
    """Early or late, with and without a length: once, or in `peek` not at all and 400."""
    stack, recorders, mode = usual
    async with Raw(stack.http_address) as raw:
        attack = Attack(raw, SMUGGLED, length=length)
        if "head" in WAYS[way]:
            await attack.flush()
            await asyncio.sleep(0.05)
        attack.data(20)
        if "data" in WAYS[way]:
            await attack.flush()
            await asyncio.sleep(0.05)
        attack.trailers()
        answered = await asyncio.wait_for(attack.answer(), 60)
    if mode == "peek":
        assert (answered, forwarded(recorders)) == ((400, "trailers"), [])
    else:
        assert (answered, forwarded(recorders)) == ((200, None), [SMUGGLED])


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 90_000, 400_000])
async def test_a_body_without_trailers_arrives_once(usual, size):
    """Around the bound of what the picker reads, in one frame or in many."""
    stack, recorders, _ = usual
    body = b"{" + b" " * size + b"}"
    async with Raw(stack.http_address) as raw:
        attack = Attack(raw, body)
        at = 0
        while at < len(body):
            room = min(attack.h2.local_flow_control_window(1), attack.h2.max_outbound_frame_size)
            if not room:
                await attack.flush()
                attack.h2.receive_data(await raw.reader.read(65_536))
                continue
            attack.h2.send_data(1, body[at : at + room])
            at += room
        attack.h2.end_stream(1)
        assert await asyncio.wait_for(attack.answer(), 60) == (200, None)
    assert forwarded(recorders) == [body]


async def test_data_after_the_length_reaches_no_replica(usual):
    """Envoy's HTTP/2 ends such a stream; the replica sees at most an unfinished request."""
    stack, recorders, _ = usual
    async with Raw(stack.http_address) as raw:
        attack = Attack(raw, SMUGGLED)
        attack.data()
        attack.h2.send_data(1, SMUGGLED, end_stream=True)
        status, _ = await asyncio.wait_for(attack.answer(), 60)
        assert status in (None, 400)
    for one in recorders:
        one.faults.clear()
    assert forwarded(recorders) == []


@pytest.mark.parametrize("version", [1, 2])
async def test_no_replica_sees_a_clients_control_header(usual, version):
    """Each that the page lists, whatever its case; what Envoy itself sets has Envoy's value."""
    stack, recorders, _ = usual
    body = b'{"text_input": "hello"}'
    forged = [(name, "forged") for name in STRIPPED_HEADERS]
    async with Raw(stack.http_address) as raw:
        if version == 1:
            lines = [f"{name.title()}: {value}" for name, value in forged * 2]
            await raw.send(head(GENERATE, f"content-length: {len(body)}", *lines), body)
            assert await raw.status() == 200
        else:
            attack = Attack(raw, body, headers=forged)
            attack.data(end=True)
            assert await asyncio.wait_for(attack.answer(), 60) == (200, None)
    every = [each for one in recorders for each in one.got]
    assert every
    for got in every:
        assert not [name for name, value in got.headers.items() if "forged" in value]
        assert "x-envoy-attempt-count" in got.headers
    assert set(forwarded(recorders)) == {body}


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "trailers"])
async def test_only_a_request_whose_end_is_known_is_repeated(usual, ended):
    """A replica that breaks off makes Envoy ask another one; not with a body that trailers end."""
    stack, recorders, mode = usual
    for one in recorders:
        one.breaks = 1
    body = b'{"text_input": "hello"}'
    async with Raw(stack.http_address) as raw:
        attack = Attack(raw, body)
        attack.data(end=ended)
        if not ended:
            attack.trailers()
        await asyncio.wait_for(attack.answer(), 60)
    got = forwarded(recorders)
    for one in recorders:
        one.breaks = 0
    # In `none` the replica may have it twice, in `full` the picker says that one may read it.
    twice = ended or mode == "none"
    assert got == ([body, body] if twice else [body] if mode == "full" else [])


@pytest.fixture(scope="module")
async def impatient():
    """Run a stack whose Envoy waits for a picker for less than half a second."""
    async with world(patience=SHORT) as (stack, recorders):
        yield stack, recorders


@pytest.mark.parametrize("breaks", [0, 1], ids=["answers", "breaks-off"])
@pytest.mark.parametrize("end", ["hung", "killed"])
async def test_a_picker_that_fails_between_its_replies(http, impatient, end, breaks):
    """It has asked for the body and never decides: Envoy sends the request on, once.

    A replica that breaks off is not followed by another one: that is what the mark costs.
    """
    stack, recorders = impatient
    for one in recorders:
        one.breaks = breaks
    async with asked_for_the_body(http, stack, SMUGGLED) as attack:
        stopped = stack.pid("picker")
        if end == "hung":
            os.kill(stopped, signal.SIGSTOP)
        else:
            await stack.kill_picker()
        attack.data(20)
        await attack.flush()
        attack.trailers()
        status, _ = await asyncio.wait_for(attack.answer(), 60)
    if end == "hung":
        os.kill(stopped, signal.SIGCONT)
    else:
        await stack.start_picker()
    for one in recorders:
        one.breaks = 0
    assert (status, forwarded(recorders)) == (503 if breaks else 200, [SMUGGLED])
    async with http.post(stack.http_url + GENERATE, data=b'{"text_input": "a"}') as after:
        assert after.status == 200
    recorders[0].got.clear()
    recorders[1].got.clear()
