"""Calls about rollouts, as the admin service answers them."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from support.controls import World, settle, weight
from support.fleets import fleet, pool
from tidegate_api.admin.v1 import admin_pb2 as api
from xds_server.admin.access.caller import CallEnded
from xds_server.admin.access.calls import CallContext
from xds_server.admin.service import AdminService
from xds_server.applications.canary.guards import ArmReplicas
from xds_server.applications.keepers.canary_keeper import CanaryKeeper
from xds_server.fleet.store import RevisionStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

VARIANTS = [{"name": "stable", "weight": 100}, {"name": "canary", "weight": 0}]
FLEET = fleet(pool(default=True, variants=VARIANTS)).model_dump_json()
ANN = api.ChangeOptions(author="ann", reason="v2")
CONTEXT = CallContext()
START = api.StartCanaryRequest(
    pool="llm", variant="canary", plan={"steps": "5,100"}, options=ANN, seen=0
)


@pytest.fixture
async def service() -> AsyncIterator[AdminService]:
    """Return the service over a pool with two variants."""
    with closing(RevisionStore(None)) as store:
        world = World(store)

        async def keep(_: str) -> None:
            """Store nothing."""

        keeper = CanaryKeeper(
            world.control, lambda *_: ArmReplicas(3, 3), keep, lambda: 1.8e9, lambda: 0.25
        )
        await world.control.start(FLEET, "fleet.yaml")
        observed: Any = SimpleNamespace(clients=list)
        yield AdminService(world.control, observed, canaries=keeper)
        await world.control.stop()


async def refused(call: Any, request: Any, code: grpc.StatusCode) -> str:
    """Return why a call is refused."""
    with pytest.raises(CallEnded) as ended:
        await call(request, CONTEXT)
    assert ended.value.code is code
    return ended.value.text


async def test_a_rollout_is_started_looked_at_and_ended(service: AdminService) -> None:
    """With its operator in the history, and a number that a second operator may be held to."""
    answer = await service.StartCanary(START, CONTEXT)
    (rollout,) = answer.rollouts
    assert rollout.line.startswith("canary llm: canary at 5 %, running; waits for")
    assert (rollout.phase, rollout.transitions) == ("running", 1)
    assert any("50 of 50 sessions" in each for each in rollout.waits_for)
    assert json.loads(rollout.report_json)["canary"] == "canary"
    pause = api.ActOnCanaryRequest(pool="llm", action="pause", seen=1, options=ANN)
    (paused,) = (await service.ActOnCanary(pause, CONTEXT)).rollouts
    assert (paused.phase, paused.transitions) == ("paused", 2)
    failed = grpc.StatusCode.FAILED_PRECONDITION
    said = await refused(service.ActOnCanary, pause, failed)
    assert "at 2 transitions and you have seen 1; paused at 5 %: pause by ann (v2)." in said
    assert said.endswith("Look again: tidegate canary status llm")
    abort = api.ActOnCanaryRequest(pool="llm", action="abort", options=ANN)
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert "`seen` is missing" in await refused(service.ActOnCanary, abort, invalid)
    abort.options.force = True
    (ended,) = (await service.ActOnCanary(abort, CONTEXT)).rollouts
    assert (ended.phase, list(ended.waits_for)) == ("aborted", [])
    assert json.loads(ended.report_json)["reason"] == "abort by ann (v2)"
    revisions = (await service.ListRevisions(api.ListRevisionsRequest(), CONTEXT)).revisions
    assert [each.author for each in revisions] == ["ann", "ann", "ann", "fleet file"]
    assert list(revisions[1].changes) == ["canary canary of pool llm: pause by ann (v2)"]
    assert revisions[2].reason == "canary canary: step 1 of 2: 5 % (v2)"
    assert "3 transitions and you have seen 0" in await refused(service.StartCanary, START, failed)
    assert not (await service.GetCanaries(api.GetCanariesRequest(pool="x"), CONTEXT)).rollouts


async def test_weights_beside_a_rollout_need_force(service: AdminService) -> None:
    """A dry run does not; the refusal says what moves them."""
    await service.StartCanary(START, CONTEXT)
    request = api.SetWeightsRequest(pool="llm", weights={"stable": 9, "canary": 1})
    failed = grpc.StatusCode.FAILED_PRECONDITION
    assert "it moves the weights" in await refused(service.SetWeights, request, failed)
    request.options.dry_run = True
    assert (await service.SetWeights(request, CONTEXT)).changes
    request.options.dry_run, request.options.force = False, True
    await service.SetWeights(request, CONTEXT)
    assert weight(service._control) == 1


async def test_weights_that_waited_for_the_start_of_a_rollout_are_refused(
    service: AdminService,
) -> None:
    """The rollout is looked for in the change's turn, not when the call comes."""
    request = api.SetWeightsRequest(pool="llm", weights={"stable": 9, "canary": 1})
    async with service._control._turn:
        waiting = asyncio.create_task(service.SetWeights(request, CONTEXT))
        starting = asyncio.create_task(service.StartCanary(START, CONTEXT))
        await settle()
        assert service._canaries is not None
        assert service._canaries.running
    with pytest.raises(CallEnded, match="it moves the weights"):
        await waiting
    await starting
    assert weight(service._control) > 1


async def test_all_rollouts_are_frozen_by_a_name(service: AdminService) -> None:
    """Until they are unfrozen none starts."""
    freeze = api.ActOnCanaryRequest(action="freeze", seen=0, options=ANN)
    answer = await service.ActOnCanary(freeze, CONTEXT)
    assert (answer.frozen, answer.freezes) == ("ann: v2", 1)
    failed = grpc.StatusCode.FAILED_PRECONDITION
    late = await refused(service.ActOnCanary, freeze, failed)
    assert "freezes are at 1 and you have seen 0; frozen by ann: v2." in late
    assert "frozen by ann: v2" in await refused(service.StartCanary, START, failed)
    thaw = api.ActOnCanaryRequest(action="unfreeze", seen=1, options=ANN)
    assert not (await service.ActOnCanary(thaw, CONTEXT)).frozen
    revisions = (await service.ListRevisions(api.ListRevisionsRequest(), CONTEXT)).revisions
    assert [each.reason for each in revisions][:2] == [
        "rollouts go on (v2)",
        "all rollouts frozen (v2)",
    ]


async def test_what_cannot_be_is_refused_by_its_kind(service: AdminService) -> None:
    """Unknown names, values out of range, and calls that a rollout has not."""
    invalid, dry = grpc.StatusCode.INVALID_ARGUMENT, api.ChangeOptions(dry_run=True)
    failed, unknown = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND
    for start, code in (
        (api.StartCanaryRequest(pool="other", variant="canary", seen=0), unknown),
        (api.StartCanaryRequest(pool="llm", variant="v3", seen=0), failed),
        (api.StartCanaryRequest(pool="llm", variant="canary", plan={"a": "b"}, seen=0), invalid),
        (api.StartCanaryRequest(pool="llm", variant="canary"), invalid),
        (api.StartCanaryRequest(pool="llm", variant="canary", options=dry), invalid),
    ):
        assert await refused(service.StartCanary, start, code)
    for act, code in (
        (api.ActOnCanaryRequest(pool="llm", action="abort", seen=0), failed),
        (api.ActOnCanaryRequest(pool="llm", action="freeze"), invalid),
        (api.ActOnCanaryRequest(action="freeze"), invalid),
        (api.ActOnCanaryRequest(action="freeze", options=dry), invalid),
    ):
        assert await refused(service.ActOnCanary, act, code)
    bare = AdminService(service._control, service._observed)
    assert "no rollouts" in await refused(bare.GetCanaries, api.GetCanariesRequest(), invalid)
