"""Calls about models, as the admin service answers them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from support.fleets import fleet, pool
from support.model_servers import ModelServer
from tidegate_api.admin.v1 import admin_pb2 as api
from xds_server.admin.access.caller import CallEnded
from xds_server.admin.access.calls import CallContext
from xds_server.admin.answers.operations import ModelCalls
from xds_server.applications.loading.acting import ModelActions
from xds_server.applications.loading.keeper import LoadKeeper
from xds_server.applications.loading.replicas import TritonCalls
from xds_server.fleet.store import RevisionStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WAIT = api.ChangeOptions(author="ann", reason="new", wait=True)
CONTEXT = CallContext()


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    """Return a replica."""
    async with ModelServer("r1") as made:
        yield made


@pytest.fixture
async def service(server: ModelServer) -> AsyncIterator[ModelCalls]:
    """Return the calls over a pool of this replica."""
    spec = pool(
        default=True, match={"models": ["m"]}, variants=[{"name": "v"}], endpoints=[server.endpoint]
    )
    control: Any = SimpleNamespace(fleet=fleet(spec), revision=1)
    async with TritonCalls() as calls:
        keeper = LoadKeeper(ModelActions(control, calls), RevisionStore(None), lambda: 5)
        yield ModelCalls(keeper)
        await keeper.stop()


async def test_a_load_that_is_waited_for_is_told_whole(
    service: ModelCalls, server: ModelServer
) -> None:
    """With its author, its replicas and each step; it is found again by its number."""
    request = api.LoadModelRequest(pool="llm", model="m", version="1", options=WAIT)
    answer = await service.load(request, CONTEXT)
    assert (answer.phase, answer.ended, answer.author, answer.reason) == (
        "done",
        True,
        "ann",
        "new",
    )
    assert [(each.endpoint, each.state) for each in answer.replicas] == [("r1", "changed")]
    assert [each.text for each in answer.steps] == [
        "checking",
        "changing",
        "r1: loaded",
        "comparing",
        "all replicas have the same configuration, versions, platform and shapes",
        "done",
    ]
    assert server.ready == {"m": ["1"]}
    listed = await service.operations(api.GetOperationsRequest(operation=1), CONTEXT)
    assert list(listed.operations) == [answer]


async def test_the_history_has_operations_without_their_steps(service: ModelCalls) -> None:
    """The newest first, and no dry run: it has changed nothing."""
    request = api.LoadModelRequest(pool="llm", model="m", options=WAIT)
    await service.load(request, CONTEXT)
    await service.load(request, CONTEXT)
    request.options.dry_run = True
    await service.load(request, CONTEXT)
    newest, first = service.began_since(5, 20)
    assert (newest.number, first.number, first.phase, first.author) == (2, 1, "done", "ann")
    assert (list(first.replicas), list(first.steps)) == ([], [])
    assert service.began_since(5, 1) == [newest]
    assert service.began_since(6, 20) == []


async def test_an_unload_needs_force_for_the_last_replica(service: ModelCalls) -> None:
    """As a drain does."""
    await service.load(api.LoadModelRequest(pool="llm", model="m", options=WAIT), CONTEXT)
    request = api.UnloadModelRequest(pool="llm", model="m", options=WAIT)
    assert (await service.unload(request, CONTEXT)).phase == "undone"
    request.options.force = True
    assert (await service.unload(request, CONTEXT)).phase == "done"


async def test_models_are_compared(service: ModelCalls) -> None:
    """A replica without the model says why."""
    request = api.GetModelParityRequest(pool="llm", model="m", endpoints="r1")
    (found,) = (await service.parity(request, CONTEXT)).replicas
    assert (found.digest, found.error) == ("", "404: Request for unknown model")
    await service.load(api.LoadModelRequest(pool="llm", model="m", options=WAIT), CONTEXT)
    (found,) = (await service.parity(request, CONTEXT)).replicas
    assert (len(found.digest), found.versions, found.platform) == (64, ["1"], "python")


@pytest.mark.parametrize(
    ("name", "request_", "code"),
    [
        ("load", api.LoadModelRequest(pool="x"), grpc.StatusCode.INVALID_ARGUMENT),
        ("load", api.LoadModelRequest(pool="x", model="m"), grpc.StatusCode.NOT_FOUND),
        ("unload", api.UnloadModelRequest(pool="llm"), grpc.StatusCode.INVALID_ARGUMENT),
        ("abort", api.AbortModelRequest(operation=9), grpc.StatusCode.NOT_FOUND),
        ("parity", api.GetModelParityRequest(pool="x"), grpc.StatusCode.NOT_FOUND),
        (
            "parity",
            api.GetModelParityRequest(pool="llm", model="m" * 300),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ],
)
async def test_what_is_wrong_has_a_status(
    service: ModelCalls, name: str, request_: Any, code: grpc.StatusCode
) -> None:
    """And a sentence."""
    with pytest.raises(CallEnded) as ended:
        await getattr(service, name)(request_, CONTEXT)
    assert ended.value.code is code
    assert ended.value.text
