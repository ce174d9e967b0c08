"""Loads and unloads on real Tritons, under requests that must not notice them."""

from __future__ import annotations

import asyncio
import json

import pytest

from support.loads import SLOW, WAIT, having, requests
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
    with HeldPorts() as ports:  # until it has ended: it opens them late
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
