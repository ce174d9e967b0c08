"""Loads that are aborted, or whose control server is killed, under requests."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from support.certificates import Authority
from support.control_process import served
from support.loads import FORCE, SLOW, WAIT, having, pool_of, requests
from support.placed_models import BODY
from support.tls_front import TlsFront
from support.traffic import admin, eventually
from tidegate_api.admin.v1 import admin_pb2 as api

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("step", ["checking", "changing", "r1: loaded", "warming"])
async def test_an_abort_at_each_step_leaves_nothing(http, stack, tritons, models, step):
    """A load or a request that runs is waited for."""
    async with admin(stack) as control, requests(stack, models):
        request = api.LoadModelRequest(
            pool="loads", model=SLOW, parallel=1, warmup=[BODY.decode()] * 4
        )
        number = (await control.LoadModel(request)).number

        async def reached() -> bool:
            asked = api.GetOperationsRequest(operation=number)
            (now,) = (await control.GetOperations(asked)).operations
            return now.ended or any(each.text.startswith(step) for each in now.steps)

        assert await eventually(reached)
        made = await control.AbortModel(api.AbortModelRequest(operation=number, options=WAIT))
    assert (made.phase, made.why[:7]) == ("undone", "aborted")
    assert await having(http, tritons, SLOW) == []


async def steps_of(control, number):
    """Return an operation, and what it says."""
    asked = api.GetOperationsRequest(operation=number)
    (now,) = (await control.GetOperations(asked)).operations
    return now, [each.text for each in now.steps]


async def test_a_killed_control_server_ends_operations_when_it_is_back(
    http, stack, tritons, models, tmp_path
):
    """A load goes on, with one replica that has loaded and one that loads; undoing goes on, too."""
    endpoints = [
        {"id": each.name, "http": each.http, "grpc": each.grpc, "metrics": each.metrics_url}
        for each in tritons.replicas
    ]
    file = tmp_path / "fleet.yaml"
    file.write_text(json.dumps({"pools": [pool_of(endpoints) | {"default": True}]}), "utf-8")

    async def begun(control) -> int:
        request = api.LoadModelRequest(pool="loads", model=SLOW, parallel=1)
        number = (await control.LoadModel(request)).number
        await reached(control, number, "r1: loaded")
        return number

    async def reached(control, number, point) -> None:
        async def there() -> bool:
            return point in "\n".join((await steps_of(control, number))[1])

        assert await eventually(there)

    async def ended(control, number) -> tuple[str, list[str]]:
        async def over() -> bool:
            return (await steps_of(control, number))[0].ended

        assert await eventually(over)
        return (await steps_of(control, number))[0].phase, await having(http, tritons, SLOW)

    async with requests(stack, models):
        async with served(file, tmp_path / "state") as run:
            first = await begun(run.admin)
            await run.kill()
        assert "r1" in await having(http, tritons, SLOW)
        async with served(file, tmp_path / "state") as run:
            assert await ended(run.admin, first) == ("done", ["r1", "r2", "r3"])
            request = api.UnloadModelRequest(pool="loads", model=SLOW, parallel=3, options=FORCE)
            assert (await run.admin.UnloadModel(request)).phase == "done"
            second = await begun(run.admin)
            await run.admin.AbortModel(api.AbortModelRequest(operation=second))
            await reached(run.admin, second, "undoing")
            await run.kill()
        async with served(file, tmp_path / "state") as run:
            assert await ended(run.admin, second) == ("undone", [])
            told = (await run.admin.ListRevisions(api.ListRevisionsRequest())).operations
            outcomes = [(each.kind, each.phase) for each in told]
            assert outcomes == [("load", "undone"), ("unload", "done"), ("load", "done")]


@asynccontextmanager
async def held_while_comparing(tritons, folder):
    """Yield the file of a fleet whose last Triton holds its configuration back, and its front."""
    authority = Authority(folder, "ca")
    pair = authority.sign("replica", "DNS:triton.test")
    tls = {"ca": str(authority.own.certificate), "server_name": "triton.test"}
    fronts = [TlsFront(each.http) for each in tritons.replicas[:-1]]
    fronts.append(TlsFront(tritons.replicas[-1].http, holds=b"/config"))
    async with AsyncExitStack() as stack:
        for front in fronts:
            await stack.enter_async_context(front.serve(authority.server(pair, ask_clients=False)))
        at = [
            {"id": each.name, "http": front.address}
            for each, front in zip(tritons.replicas, fronts, strict=True)
        ]
        file = folder / "fleet.yaml"
        file.write_text(
            json.dumps({"pools": [pool_of(at) | {"default": True, "upstream_tls": tls}]}), "utf-8"
        )
        yield file, fronts[-1]


async def test_an_abort_while_replicas_are_compared_leaves_nothing(
    http, stack, tritons, models, tmp_path
):
    """One of them keeps the question; all are asked over TLS."""
    async with (
        requests(stack, models),
        held_while_comparing(tritons, tmp_path) as (file, front),
        served(file, tmp_path / "state") as run,
    ):
        request = api.LoadModelRequest(pool="loads", model=SLOW, parallel=3)
        number = (await run.admin.LoadModel(request)).number
        await front.held.wait()
        assert await having(http, tritons, SLOW) == ["r1", "r2", "r3"]
        made = await run.admin.AbortModel(api.AbortModelRequest(operation=number, options=WAIT))
        assert (made.phase, made.why[:7]) == ("undone", "aborted")
    assert await having(http, tritons, SLOW) == []


async def test_a_control_server_that_is_killed_while_it_compares_compares_again(
    http, stack, tritons, models, tmp_path
):
    """The models stay loaded meanwhile, and the operation ends as it would have."""
    async with (
        requests(stack, models),
        held_while_comparing(tritons, tmp_path) as (file, front),
    ):
        async with served(file, tmp_path / "state") as run:
            request = api.LoadModelRequest(pool="loads", model=SLOW, parallel=3)
            number = (await run.admin.LoadModel(request)).number
            await front.held.wait()
            await run.kill()
        assert await having(http, tritons, SLOW) == ["r1", "r2", "r3"]
        front.released.set()
        async with served(file, tmp_path / "state") as run:

            async def over() -> bool:
                return (await steps_of(run.admin, number))[0].ended

            assert await eventually(over)
            made, steps = await steps_of(run.admin, number)
            assert (made.phase, steps.count("comparing")) == ("done", 1), steps
            assert "the control server was restarted" in steps
        assert await having(http, tritons, SLOW) == ["r1", "r2", "r3"]
