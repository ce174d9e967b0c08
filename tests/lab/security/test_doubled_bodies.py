"""Bodies that are requests, and trailers behind them, against real Tritons.

Envoy sent such a body twice under the length of one: a Triton took the second copy for a request of
its own, which unloaded a model, and its answer went to whoever was next on the connection.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from ext_proc.requests.forms.http_infer import LENGTH_HEADER
from support import ungated_control_server
from support.smuggling import LATE, asked_for_the_body, counted
from support.traffic import VISION, eventually, vision_body
from tidegate.stack import commands
from tidegate_api.pools import LEAST_PEEK_BYTES

SHORT = (
    b"POST /v2/repository/models/counter/unload HTTP/1.1\r\nhost: t\r\ncontent-length: 0\r\n\r\n"
)
"""The picker refuses it: it is too short to be a first part, and has no end."""
LONG = SHORT + b"POST /v2 HTTP/1.1\r\nhost: t\r\ncontent-length: %d\r\n\r\n%s" % (
    LEAST_PEEK_BYTES,
    b" " * LEAST_PEEK_BYTES,
)
"""It may be a first part: the picker routes it, and only the gate on retries keeps it from harm."""
RAW_TENSOR = [(LENGTH_HEADER, "0")]
"""A body of which the picker reads nothing."""
READY = "/v2/models/counter/ready"
ATTACKS, INNOCENTS = 12, 36


@pytest.fixture(scope="module")
async def attacked(lend):
    """Run a stack whose Envoy waits half a second for a picker."""
    return await lend(fleet={"pickers": {"timeout": "500ms"}})


async def loaded(http, stack):
    """Return on how many Tritons the model is ready."""
    found = 0
    for one in stack.replicas:
        async with http.get(one.http_url + READY) as answer:
            found += answer.status == 200
    return found


async def innocent(http, stack, number):
    """Return whether a caller got its own answer."""
    body = {**vision_body(), "id": f"innocent-{number}"}
    async with http.post(stack.http_url + VISION, json=body) as answer:
        return answer.status == 200 and (await answer.json())["id"] == body["id"]


async def attack(http, stack, picker, body):
    """Attack once, and let the picker hang or die after it has asked for the body."""
    begun = asked_for_the_body(http, stack, body, path=VISION, headers=RAW_TENSOR)
    async with begun as made:
        stopped = stack.pid("picker")
        if picker == "killed":
            await stack.kill_picker()
        elif picker != "there":
            os.kill(stopped, signal.SIGSTOP)
        made.data()
        await made.flush()
        made.trailers()
        if picker == "late":
            await made.flush()
            os.kill(stopped, signal.SIGCONT)
        status, reason = await asyncio.wait_for(made.answer(), 60)
    if picker == "hung":
        os.kill(stopped, signal.SIGCONT)
    if picker == "killed":
        await stack.start_picker()
    return status, reason


@pytest.mark.parametrize("body", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize(
    ("picker", "times"), [("there", ATTACKS), ("late", 3), ("hung", 3), ("killed", 1)]
)
async def test_trailers_unload_nothing_and_cross_no_answers(http, attacked, picker, times, body):
    """0 of 3 Tritons unload the model, and each innocent caller gets its own answer."""
    count = len(attacked.replicas)
    assert await loaded(http, attacked) == count
    # Beside a picker that the test stops, others' messages would hide when it has asked.
    together = INNOCENTS if picker == "there" else 0
    innocents = [asyncio.create_task(innocent(http, attacked, n)) for n in range(together)]
    judged = 0
    for _ in range(times):
        late = await counted(http, attacked, LATE)
        told = await attack(http, attacked, picker, body)
        # Without a picker that takes half a second for a message Envoy goes on, to a Triton.
        if picker == "there" and await counted(http, attacked, LATE) == late:
            # Where it is long, a Triton finds that it is no tensor.
            assert told == (400, "trailers" if body is SHORT else None)
            judged += 1
    assert judged or picker != "there"
    assert all(await asyncio.gather(*innocents))
    later = [innocent(http, attacked, number) for number in range(together, INNOCENTS)]
    assert all(await asyncio.gather(*later))
    assert await loaded(http, attacked) == count

    async def quiet():
        async with http.get(f"http://{attacked.picker_metrics}/metrics") as answer:
            return answer.status == 200

    assert await eventually(quiet)


async def test_without_the_gate_the_second_copy_unloads_a_model(http, new_stack, monkeypatch):
    """The planted fault: a control server whose routes repeat what has no known end."""
    ungated, build = ungated_control_server, commands.control_server
    monkeypatch.setenv("PYTHONPATH", str(Path(ungated.__file__).parents[1]))
    monkeypatch.setattr(
        commands, "control_server", lambda *given: (ungated.__name__, *build(*given)[1:])
    )
    stack = await new_stack()
    assert await loaded(http, stack) == len(stack.replicas)
    try:

        async def harmed():
            assert await attack(http, stack, "there", SHORT) == (400, "trailers")
            await attack(http, stack, "there", LONG)
            return await loaded(http, stack) < len(stack.replicas)

        assert await eventually(harmed)
    finally:
        for one in stack.replicas:
            url = f"{one.http_url}/v2/repository/models/counter/load"
            async with http.post(url) as answer:
                assert answer.status == 200
