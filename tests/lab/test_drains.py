"""Drains that cannot hurt: the last replica stays, and a replica is stopped only when it is idle.

Streams are of seconds here; ``TIDEGATE_STREAM_TOKENS=200000`` and ``--timeout=900`` make
them last minutes.
"""

from __future__ import annotations

import asyncio
import uuid

import aiohttp
import grpc
import pytest

from support.traffic import (
    COUNTER,
    GENERATE,
    STREAM_TOKENS,
    VISION,
    Traffic,
    admin,
    counter_body,
    eventually,
    fresh_prompt,
    vision_body,
)
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.processes.waiting import http_ok, wait_until
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.names import SERVED_BY_HEADER
from tidegate_common.children import module_command

OPTIONS = api.ChangeOptions(author="test", wait=True, timeout_seconds=20)
AT_ONCE = api.ChangeOptions(author="test")
STREAM = "/v2/models/toy-llm/generate_stream"


class Second:
    """A second picker, of which Envoy asks either."""

    def __init__(self, stack, listen: str, page: str) -> None:
        self.supervisor = Supervisor(stack.run.logs)
        self._page = page
        self._command = (
            *module_command("ext_proc", "--id", "picker-2", "--listen", listen),
            *("--metrics", page, "--xds", stack.addresses.ads),
        )

    async def start(self) -> None:
        """Start it, and wait until it is ready."""
        await self.supervisor.start("picker-2", self._command, service_environment())
        async with aiohttp.ClientSession() as session:
            await wait_until(
                lambda: http_ok(session, f"http://{self._page}/healthz"),
                "the second picker",
                timeout_s=60,
                supervisors=(self.supervisor,),
            )


@pytest.fixture
async def second(stack):
    """Run a second picker during a test."""
    fleet = stack.read_fleet()
    with HeldPorts() as ports:
        made = Second(stack, listen := ports.address(), ports.address())
        await made.start()
        addresses = [*fleet["pickers"]["addresses"], listen]
        stack.write_fleet({**fleet, "pickers": {**fleet["pickers"], "addresses": addresses}})
        yield made
        await made.supervisor.stop()
        stack.write_fleet(fleet)


async def safe(http, stack, name: str, timeout_s: float = 0) -> tuple[int, str]:
    """Ask as a hook does."""
    url = f"http://{stack.control_metrics}/safe-to-stop"
    query = {"endpoint": name, "timeout": f"{timeout_s:g}"}
    patience = aiohttp.ClientTimeout(total=timeout_s + 30)
    async with http.get(url, params=query, timeout=patience) as answer:
        return answer.status, await answer.text()


async def drained(operator, name: str, options=AT_ONCE, *, draining: bool = True):
    """Drain a replica, or end its drain."""
    request = api.SetDrainingRequest(endpoint=name, draining=draining, options=options)
    return await operator.SetDraining(request)


def name_of(stack, address: str) -> str:
    """Return the replica at an address."""
    return next(each.name for each in stack.replicas if each.http == address)


def body() -> dict[str, object]:
    """Return a cheap request with a prompt that is in no cache."""
    return {"text_input": fresh_prompt(64), "max_tokens": 1}


@pytest.fixture(scope="module")
async def stack(new_module_stack):
    """Run a stack whose control server one of the tests kills."""
    return await new_module_stack()


async def test_a_series_of_drains_fails_no_request(http, stack):
    """The one that would take the last replica is refused, by force it is not."""
    async with (
        admin(stack) as operator,
        Traffic(http, stack.http_url + GENERATE, body) as traffic,
    ):
        await drained(operator, "r1", OPTIONS)
        await drained(operator, "r1", OPTIONS)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await drained(operator, "r2", OPTIONS)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "variant stable of pool llm" in refused.value.details()
        assert "r1 drains, r2 drains" in refused.value.details()
        await traffic.more(100)
        await drained(operator, "r1", OPTIONS, draining=False)
    assert not traffic.failures


async def test_a_hook_waits_for_sequences(http, stack):
    """One that is open will send more, although nothing is in flight."""
    sequence = uuid.uuid4().hex

    async def step(**flags: bool) -> str:
        request = counter_body(1, sequence, **flags)
        async with http.post(stack.http_url + COUNTER, json=request) as found:
            assert found.status == 200, await found.text()
            return name_of(stack, found.headers[SERVED_BY_HEADER])

    name = await step(sequence_start=True)
    async with admin(stack) as operator:
        await drained(operator, f"counter/{name}")

        async def open_() -> bool:
            return "1 open sequence" in (await safe(http, stack, name))[1]

        assert await eventually(open_)
        assert "in pool llm: drain it" in (await safe(http, stack, name))[1]
        await drained(operator, name, api.ChangeOptions(force=True))
        assert await step() == name
        assert (await safe(http, stack, name))[0] == 503
        assert await step(sequence_end=True) == name
        assert (await safe(http, stack, name, 60))[0] == 200
        await drained(operator, name, OPTIONS, draining=False)


async def test_a_hook_waits_for_streams(http, stack, second):
    """Both pickers must say zero, over a restart of the control server; what is unknown is not."""
    async with admin(stack) as operator:
        answer = await http.post(
            stack.http_url + STREAM,
            # It is to be in flight still when the picker says so after the drain.
            json={
                "text_input": fresh_prompt(64),
                "max_tokens": max(STREAM_TOKENS, 4000),
                "stream": True,
            },
            timeout=aiohttp.ClientTimeout(total=600),
        )
        await answer.content.readline()
        name = name_of(stack, answer.headers[SERVED_BY_HEADER])
        assert "drain it" in (await safe(http, stack, name))[1]
        await drained(operator, name)

        async def told() -> bool:
            status, text = await safe(http, stack, name)
            return status == 503 and "1 request in flight" in text and "drain it" not in text

        assert await eventually(told)
        await second.supervisor.stop()

        async def missed() -> bool:
            return "picker picker-2 is not connected" in (await safe(http, stack, name))[1]

        assert await eventually(missed)
        await stack.kill_control_server()
        await stack.start_control_server()
        status, text = await safe(http, stack, name)
        assert (status, "not known" in text) == (503, True)
        await second.start()
        waiting = asyncio.create_task(safe(http, stack, name, 600))
        await answer.read()
        await asyncio.wait({waiting}, timeout=90)
        assert waiting.done(), await safe(http, stack, name)
        assert await waiting == (200, f"safe to stop: {name}\n")
        await drained(operator, name, OPTIONS, draining=False)


async def test_a_standby_comes_in_and_goes_back(http, new_stack):
    """When the others are lost, and by an operator; without a failed request where one is left."""

    def standing(fleet) -> None:
        for pool in fleet["pools"]:
            if pool["name"] == "vision":
                pool["endpoints"][2]["standby"] = True
                pool["standby"] = {"below": 0.75, "hold": "1s"}
                pool["slow_start"] = {"window": 0}  # its share of requests is seen at once

    stack = await new_stack(fleet=standing)
    spare = stack.replicas[2]
    async with (
        admin(stack) as operator,
        Traffic(http, stack.http_url + VISION, vision_body) as traffic,
    ):

        async def used() -> bool:
            traffic.served.clear()
            await traffic.more(60)
            return traffic.served[spare.http] > 0

        async def unused() -> bool:
            return not await used()

        assert await unused()
        await drained(operator, "vision/r1", OPTIONS)
        assert await eventually(used)
        await stack.kill_control_server()
        await stack.start_control_server()
        assert await used()
        await drained(operator, "vision/r1", OPTIONS, draining=False)
        assert await eventually(unused)
        request = api.SetStandbyRequest(endpoint="vision/r3", standby=False, options=OPTIONS)
        await operator.SetStandby(request)
        assert await eventually(used)
        request.standby = True
        await operator.SetStandby(request)
        assert await eventually(unused)
    assert not traffic.failures
