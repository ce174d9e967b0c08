"""Loads and unloads on real Tritons, under requests that must not notice them."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from support.certificates import Authority
from support.control_process import served
from support.placed_models import BODY, CONFIG, PlacedModels
from support.tls_front import TlsFront
from support.traffic import admin, eventually
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.tritons.replica import (
    TritonReplica,
    find_triton,
    triton_command,
    triton_environment,
)
from tidegate_api.admin.v1 import admin_pb2 as api
from xds_server.applications.loading.replicas import ReplicaFault, TritonAddress, TritonCalls

pytestmark = pytest.mark.timeout(240)

NAMES = ["served", "broken", "unlike", "heavy", "plain"]
SLOW = "slow-copy"
"""A copy of a Python model, which takes about a second to load."""
SLOWER = ('"batch_ms" value { string_value: "2" }', '"batch_ms" value { string_value: "300" }')
"""What is changed in it: a request takes as many milliseconds."""
PAUSE_S = 0.1
"""Between the requests of one client: they must not take the time of the processes under test."""
WAIT = api.ChangeOptions(author="test", wait=True, timeout_seconds=60)
FORCE = api.ChangeOptions(wait=True, timeout_seconds=60, force=True)


def pool_of(endpoints):
    """Return a pool of the models on all replicas."""
    return {
        "name": "loads",
        "match": {"models": [*NAMES, SLOW]},
        "variants": [{"name": "stable", "weight": 100}],
        "endpoints": [dict(each, variant="stable") for each in endpoints],
        "routing": {"policy": "least-in-flight"},
        "model_needs": [{"model": "heavy", "memory_mib": 2**31}],
    }


def with_loads(fleet):
    """Add the pool."""
    (vision,) = [pool for pool in fleet["pools"] if pool["match"]["models"] == ["vision"]]
    fleet["pools"].append(pool_of(vision["endpoints"]) | {"health": dict(vision["health"])})


@pytest.fixture(scope="module")
async def models(http, tritons):
    """Return the models: one does not load on r3, one is another there."""
    async with PlacedModels(http, tritons, NAMES) as placed:
        r3 = tritons.run.path / "repositories" / "r3"
        (r3 / "broken" / "config.pbtxt").write_text(
            CONFIG.replace('"vision"', '"no-such-model"'), "utf-8"
        )
        (r3 / "unlike" / "config.pbtxt").write_text(
            CONFIG.replace("max_batch_size: 8", "max_batch_size: 4"), "utf-8"
        )
        for replica in tritons.replicas:
            here = tritons.run.path / "repositories" / replica.name
            shutil.copytree(here / "vision", here / SLOW)
            config = here / SLOW / "config.pbtxt"
            config.write_text(config.read_text("utf-8").replace(*SLOWER), "utf-8")
        await placed.change({("served", "r1"): True})
        yield placed


@pytest.fixture(autouse=True)
async def left_clean(http, tritons, models):  # noqa: ARG001 - unloads before they end
    """Unload what a test left loaded, a failed one too, so that the next one finds none of it."""
    yield

    async def unloaded(model) -> bool:
        left = await having(http, tritons, model)
        for at in left:
            url = f"{tritons.replica(at).http_url}/v2/repository/models/{model}/unload"
            async with http.post(url) as answer:
                assert answer.status == 200, await answer.text()
        return not left

    for model in {*NAMES, SLOW} - {"served"}:
        assert await eventually(lambda model=model: unloaded(model))


@pytest.fixture(scope="module")
async def stack(models, new_module_stack):  # noqa: ARG001 - written first
    """Run one stack with the pool."""
    return await new_module_stack(fleet=with_loads)


async def having(http, tritons, model):
    """Return the replicas that have a model READY."""
    found = []
    for each in tritons.replicas:
        async with http.get(f"{each.http_url}/v2/models/{model}/ready") as answer:
            if answer.status == 200:
                found.append(each.name)
    return found


@asynccontextmanager
async def requests(stack, models):
    """Send requests for the model that is served throughout; none may fail."""
    answers: Counter[int] = Counter()
    failures: list[str] = []
    stopped = asyncio.Event()

    async def send() -> None:
        while not stopped.is_set():
            status, text = await models.ask(stack.http_url, "served")
            answers[status] += 1
            if status != 200:
                failures.append(f"{status} {text}")
            await asyncio.sleep(PAUSE_S)

    async def one() -> bool:
        return (await models.ask(stack.http_url, "served"))[0] == 200

    assert await eventually(one)
    tasks = [asyncio.create_task(send()) for _ in range(3)]
    try:
        yield
    finally:
        stopped.set()
        await asyncio.gather(*tasks)
    assert failures == []
    assert answers[200]


async def test_a_model_moves_to_other_replicas_under_requests(http, stack, tritons, models):
    """Loaded on all, unloaded where it was; the last one keeps it."""
    async with admin(stack) as control, requests(stack, models):
        request = api.LoadModelRequest(pool="loads", model="served", version="1", options=WAIT)
        made = await control.LoadModel(request)
        assert made.phase == "done", made
        assert [each.state for each in made.replicas] == ["kept", "changed", "changed"]
        found = await control.GetModelParity(
            api.GetModelParityRequest(pool="loads", model="served")
        )
        assert not found.differences
        assert len({each.digest for each in found.replicas}) == 1

        async def known() -> bool:
            listed = await control.GetModels(api.GetModelsRequest(pool="loads"))
            ready = [e for e in listed.models if e.model == "served" and e.state == "READY"]
            return len(ready) == 3

        assert await eventually(known)
        request = api.UnloadModelRequest(pool="loads", model="served", options=WAIT)
        made = await control.UnloadModel(request)
        assert made.phase == "undone"
        assert "would be the last of the pool to have it" in made.why
        request.endpoints.append("r1")
        assert (await control.UnloadModel(request)).phase == "done"
    assert await having(http, tritons, "served") == ["r2", "r3"]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("broken", "r3: not loaded: 400: "),
        ("unlike", "r3 differs from r1 in max_batch_size (4, 8)"),
        ("heavy", f"MiB of host memory are free, {2**31} MiB are needed"),
    ],
)
async def test_what_fails_leaves_nothing(http, stack, tritons, models, model, why):
    """A load that fails on one of three, replicas that differ, and memory that is short."""
    async with admin(stack) as control, requests(stack, models):
        request = api.LoadModelRequest(pool="loads", model=model, parallel=3, options=WAIT)
        made = await control.LoadModel(request)
    assert made.phase == "undone", made
    assert why in made.why
    assert await having(http, tritons, model) == []


async def test_a_warm_up_that_fails_leaves_nothing(http, stack, tritons, models):
    """The request is not one of the model."""
    async with admin(stack) as control, requests(stack, models):
        body = json.dumps(
            {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
        )
        request = api.LoadModelRequest(pool="loads", model="plain", warmup=[body], options=WAIT)
        made = await control.LoadModel(request)
    assert made.phase == "undone", made
    assert "a warm-up request failed: 400" in made.why
    assert await having(http, tritons, "plain") == []


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
            request = api.UnloadModelRequest(pool="loads", model=SLOW, options=FORCE)
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
            request = api.UnloadModelRequest(pool="loads", model=SLOW, options=FORCE)
            assert (await run.admin.UnloadModel(request)).phase == "done"
    assert await having(http, tritons, SLOW) == []


@pytest.mark.usefixtures("models")
async def test_a_load_may_be_repeated_while_it_runs(http, tritons):
    """As after a restart of the control server; the same holds of an unload."""
    replica = tritons.replicas[0]
    addressed = TritonAddress(replica.name, replica.http, replica.metrics_url, None)
    async with TritonCalls() as calls:
        for kind, left in (("load", [replica.name]), ("unload", [])):
            await asyncio.gather(*(calls.change(addressed, kind, SLOW) for _ in range(2)))
            await calls.change(addressed, kind, SLOW)
            assert await having(http, tritons, SLOW) == left


@pytest.mark.usefixtures("demo_extra")
async def test_a_triton_that_takes_no_loads_is_told_from_one_that_does(tritons, tmp_path):
    """By its answer to an unload of a model that no repository has; with the flag to set."""
    (tmp_path / "repository").mkdir()
    installation, running = find_triton(), tritons.replicas[0]
    with HeldPorts() as ports:
        addresses = {name: ports.address() for name in ("http", "grpc", "metrics")}
        other = TritonReplica(name="other", models={}, **addresses)
        backends = tritons.run.path / "backends"
        command = triton_command(installation, other, tmp_path / "repository", backends, "other")
        process = await asyncio.create_subprocess_exec(
            *(each for each in command if each != "--model-control-mode=explicit"),
            env=triton_environment(installation, other, {}),
            stderr=asyncio.subprocess.DEVNULL,
        )
    try:
        async with TritonCalls() as calls:
            addressed = TritonAddress("other", other.http, other.metrics_url, None)

            async def up() -> bool:
                try:
                    return not (await calls.entry(addressed, "m")).known
                except ReplicaFault:
                    return False

            assert await eventually(up)
            with pytest.raises(ReplicaFault, match="--model-control-mode=explicit"):
                await calls.check_explicit(addressed)
            addressed = TritonAddress("r1", running.http, running.metrics_url, None)
            await calls.check_explicit(addressed)
            assert (await calls.free_memory(addressed)).of == "host"
    finally:
        process.kill()
        await process.wait()
