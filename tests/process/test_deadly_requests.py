"""Requests that kill replicas, and an operator who does, against a real Envoy."""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import asynccontextmanager

import pytest

from ext_proc.blame.deaths import DEATH_S
from support.mortal import DEADLY, MortalReplica
from support.replicas import stack_over
from support.traffic import GENERATE, VISION, eventually, fresh_prompt, metric, vision_body
from support.workers import states
from tidegate.stack.tritons.fleet import Tritons

APART_S = 2.5
"""Requests so far apart belong to deaths of their own, seconds."""


@asynccontextmanager
async def running(count, workers=1, **more):
    """Run a stack over replicas that can die; yield both."""
    replicas = [MortalReplica(f"r{number}", down_s=20.0) for number in range(1, count + 1)]
    async with stack_over(*replicas, more=more, workers=workers) as stack:
        for replica in replicas:
            replica.asked.clear()  # the stack's own request
        yield stack, replicas


async def ask(http, stack, prompt):
    """Send a request; return its status and the picker's reason."""
    body = {"text_input": prompt, "max_tokens": 2}
    async with http.post(stack.http_url + GENERATE, json=body) as answer:
        await answer.read()
        return answer.status, answer.headers.get("x-tidegate-reason")


async def _busy(replicas):
    return sum(replica.at_once for replica in replicas) >= 24


async def _died(replicas, count):
    return killed(replicas) >= count


async def complete(http, stack, count):
    """Wait until each worker knows of so many deaths, complete and confirmed."""

    async def look():
        known = [each["router"]["deaths"]["deaths"] for each in await states(http, stack)]
        return all(
            len(deaths) == count
            and all(one["confirmed"] and one["age_s"] > DEATH_S for one in deaths)
            for deaths in known
        )

    assert await eventually(look)


def killed(replicas):
    return sum(replica.deaths for replica in replicas)


@pytest.mark.parametrize(("retry_read", "first", "workers"), [(1, 2, 1), (0, 1, 2)])
async def test_a_killing_request_is_refused_before_it_kills_many(
    http,
    demo_extra,  # noqa: ARG001 - skips first
    retry_read,
    first,
    workers,
):
    """Its first copy kills what may read it, its second what the rules allow, its third none."""
    routing = {"fallbacks": 3, "retry_read": retry_read}
    async with running(4, workers, routing=routing) as (stack, replicas):
        assert await ask(http, stack, fresh_prompt(64)) == (200, None)
        status, _ = await ask(http, stack, DEADLY)
        assert (status, killed(replicas)) == (503, first)
        await complete(http, stack, first)
        await ask(http, stack, DEADLY)
        assert killed(replicas) == 2
        await complete(http, stack, 2)
        for _ in range(3):
            assert await ask(http, stack, DEADLY) == (422, "deadly-request")
            assert await ask(http, stack, fresh_prompt(64)) == (200, None)
        assert killed(replicas) == 2
        if workers > 1:
            return  # each worker's page tells of what that worker refused
        refused = await metric(http, stack.picker_metrics, "tidegate_picker_deadly_requests")
        assert refused == 1
        async with http.get(f"http://{stack.picker_metrics}/debug/state") as page:
            deaths = json.loads(await page.read())["router"]["deaths"]
        assert len(deaths["refused"]) == 1


async def test_a_killing_request_beyond_the_bound_kills_one(http, demo_extra):  # noqa: ARG001
    """Its end is not read, so no second replica may read it, whatever the pool says."""
    body = {"text_input": fresh_prompt(64), "padding": "x" * 300_000, "prompt": DEADLY}
    data = gzip.compress(json.dumps(body).encode())
    headers = {"content-encoding": "gzip"}
    async with running(3, routing={"fallbacks": 3, "retry_read": 1}) as (stack, replicas):
        async with http.post(stack.http_url + GENERATE, data=data, headers=headers) as answer:
            assert answer.status == 503
        assert killed(replicas) == 1
        assert await ask(http, stack, fresh_prompt(64)) == (200, None)


async def test_an_operators_kill_refuses_no_request(http, demo_extra):  # noqa: ARG001 - skips first
    """Two of three replicas die under 40 requests, each of which is answered in the end."""
    async with running(3, routing={"fallbacks": 2}) as (stack, replicas):
        stand = asyncio.Event()
        for replica in replicas:
            replica.gate = stand
        seen = []

        async def insist():
            prompt = fresh_prompt(64)
            for _ in range(240):
                seen.append(await ask(http, stack, prompt))
                if seen[-1][0] == 200:
                    return True
                await asyncio.sleep(0.25)
            return False

        sent = [asyncio.create_task(insist()) for _ in range(40)]
        assert await eventually(lambda: _busy(replicas))
        replicas[0].die()
        await asyncio.sleep(0.2)
        replicas[1].die()
        assert await eventually(lambda: _died(replicas, 2))
        stand.set()
        assert all(await asyncio.gather(*sent))
        assert {status for status, _ in seen} <= {200, 503}


def unchecked(fleet):
    """Let the request through that kills Triton; by default the picker refuses it unread."""
    for pool in fleet["pools"]:
        pool["health"]["interval"] = "300ms"
        pool["routing"]["unsound_requests"] = "pass"


async def test_a_request_that_kills_triton_is_refused(http, demo_extra, new_stack):  # noqa: ARG001
    """A shape for which it cannot allocate memory: two of four die, and the others go on."""
    tensor = {"name": "image", "datatype": "FP32", "shape": [2**40], "data": [0.5]}
    async with Tritons(4, models=("vision",)) as tritons:
        stack = await new_stack(tritons=tritons, models=("vision",), fleet=unchecked)

        async def infer(body):
            async with http.post(stack.http_url + VISION, json=body) as answer:
                await answer.read()
                return answer.status, answer.headers.get("x-tidegate-reason")

        def running():
            return sum(tritons.supervisor.running(each.name) for each in tritons.replicas)

        async def two_died():
            return running() <= 2

        assert await infer({"inputs": [tensor]}) == (503, "reads-spent")
        # A process closes its connections some time before its parent learns of its end.
        assert await eventually(two_died)
        await complete(http, stack, 2)
        assert running() == 2
        for _ in range(3):
            assert await infer({"inputs": [tensor]}) == (422, "deadly-request")
            assert await infer(vision_body()) == (200, None)
        await asyncio.sleep(APART_S)
        assert running() == 2


async def test_a_pool_can_leave_it_at_the_bound_on_reads(http, demo_extra):  # noqa: ARG001 - skips
    """`refuse_deadly: false`: each copy kills what may read it."""
    routing = {"fallbacks": 3, "retry_read": 0, "refuse_deadly": False}
    async with running(4, routing=routing) as (stack, replicas):
        for number in range(1, 4):
            await ask(http, stack, DEADLY)
            await asyncio.sleep(APART_S)
            assert killed(replicas) == number
