"""Requests that wait in the picker for a replica with room, through a real Envoy."""

from __future__ import annotations

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from tritonclient.grpc import service_pb2

from support.gated_replicas import GatedStack
from support.in_process_stack import PICKER
from support.traffic import eventually
from tidegate_api.names import REASON_HEADER, TIMEOUT_HEADER


@pytest.fixture(scope="module")
async def shared():
    """Run two replicas with one slot each behind a picker."""
    async with GatedStack(bursts=True) as running:
        yield running


@pytest.fixture
def stack(shared):
    """Return that stack, in which nothing runs."""
    for replica in shared.replicas:
        replica.reset()
    return shared


async def ended(*tasks):
    """Return the statuses of answers."""
    return [(await task)[0] for task in tasks]


async def test_what_waits_is_answered_when_a_replica_has_room(stack):
    """The third waits, goes to the replica that is freed first, and to none while it waits."""
    before = await stack.count("tidegate_picker_queue_seconds_count", end="picked")
    first = [stack.ask(), stack.ask()]
    assert await stack.busy()
    waits = [stack.ask() for _ in range(6)]
    assert await stack.waiting(6)
    stack.replicas[1].let()
    assert await stack.waiting(5)
    assert await stack.busy()
    for replica in stack.replicas:
        replica.let_all()
    assert await ended(*first, *waits) == [200] * 8
    assert [replica.most for replica in stack.replicas] == [1, 1]
    assert await stack.count("tidegate_picker_queue_seconds_count", end="picked") == before + 6


async def test_a_caller_that_leaves_does_not_wait(stack):
    """Its place is free at once, and no replica ever gets its request."""
    first = [stack.ask(), stack.ask()]
    assert await stack.busy()
    gone, stays = [stack.ask() for _ in range(5)], stack.ask()
    assert await stack.waiting(6)
    for task in gone:
        task.cancel()
    assert await stack.waiting(1)
    for replica in stack.replicas:
        replica.let_all()
    assert await ended(*first, stays) == [200] * 3
    assert sum(len(replica.headers) for replica in stack.replicas) == 3
    assert await stack.count("tidegate_picker_queue_seconds_count", end="left") == 5


async def test_a_replica_that_hangs_keeps_nobody_waiting(stack):
    """All others go through the other one."""
    first = [stack.ask(), stack.ask()]
    assert await stack.busy()
    waits = [stack.ask() for _ in range(6)]
    assert await stack.waiting(6)
    stack.replicas[0].let_all()
    assert await ended(*waits) == [200] * 6
    assert len(stack.replicas[1].headers) == 1
    stack.replicas[1].let_all()
    assert await ended(*first) == [200] * 2


async def test_a_deadline_ends_a_wait(stack):
    """The request reaches no replica, and what is told to wait longer still waits."""
    first = [stack.ask(), stack.ask()]
    assert await stack.busy()
    stays, hurries = stack.ask(), stack.ask({"tidegate-timeout-ms": "300"})
    status, headers = await hurries
    assert (status, headers[REASON_HEADER]) == (504, "deadline-passed")
    assert await stack.waiting(1)
    for replica in stack.replicas:
        replica.let_all()
    assert await ended(*first, stays) == [200] * 3
    assert sum(len(replica.headers) for replica in stack.replicas) == 3


async def test_a_limit_that_is_lifted_lets_all_go(stack):
    """No request has to end before."""
    first = [stack.ask(), stack.ask()]
    assert await stack.busy()
    waits = [stack.ask() for _ in range(4)]
    assert await stack.waiting(4)
    fleet = stack.first_fleet()
    fleet["pools"][0]["circuit_breaker"] = {}
    await stack.apply(fleet)
    assert await stack.busy(6)
    assert await stack.waiting(0)
    for replica in stack.replicas:
        replica.let_all()
    assert await ended(*first, *waits) == [200] * 6
    await stack.apply(stack.first_fleet())


async def test_a_grpc_caller_is_told_when_to_come_again(stack):
    """Its status has details, which a client of gRPC reads as they came through Envoy."""
    first = [stack.ask(), stack.ask()]
    assert await stack.busy()
    async with grpc.aio.insecure_channel(stack.listener) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        request = service_pb2.ModelInferRequest(model_name="toy-llm").SerializeToString()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(request, timeout=60, metadata=[(TIMEOUT_HEADER, "1")])
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    fleet = stack.first_fleet()
    fleet["pools"][0]["routing"]["max_wait"] = "0s"
    await stack.apply(fleet)
    async with grpc.aio.insecure_channel(stack.listener) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call(request, timeout=60)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    found = dict(raised.value.trailing_metadata())["grpc-status-details-bin"]
    info = RetryInfo()
    assert Status.FromString(found).details[0].Unpack(info)
    assert info.retry_delay.seconds == 1
    await stack.apply(stack.first_fleet())
    for replica in stack.replicas:
        replica.let_all()
    assert await ended(*first) == [200] * 2


@pytest.mark.parametrize("mode", ["closed", "open"])
async def test_a_picker_that_dies_lets_its_queue_go_only_if_the_pool_is_open(stack, mode):
    """With `without_picker: closed` the replicas get nothing of what waited.

    What replicas have at that time is ended too, as Envoy does not tell the two apart.
    """
    fleet = stack.first_fleet()
    fleet["pools"][0]["routing"]["without_picker"] = mode
    await stack.apply(fleet)
    first = [stack.ask(), stack.ask()]
    assert await stack.busy()
    waits = [stack.ask() for _ in range(20)]
    assert await stack.waiting(20)
    await stack.supervisor.kill(PICKER)
    served = 2 if mode == "closed" else 22
    if mode == "open":
        assert await stack.busy(22)
        for replica in stack.replicas:
            replica.let_all()
    assert await ended(*first, *waits) == [503 if mode == "closed" else 200] * 22
    assert sum(len(replica.headers) for replica in stack.replicas) == served
    await stack.restart(PICKER)


async def test_envoy_waits_longer_than_for_other_answers():
    """A wait that is over is refused by the picker, not passed on by Envoy."""
    async with GatedStack(timeout="2s") as stack:
        fleet = stack.first_fleet()
        fleet["pools"][0]["routing"]["max_wait"] = "3s"
        await stack.apply(fleet)
        first = [stack.ask(), stack.ask()]
        assert await stack.busy()
        status, headers = await stack.ask()
        assert (status, headers[REASON_HEADER]) == (429, "saturated")
        assert int(headers["retry-after"]) >= 6, "none of two has left in 3 s"
        assert await stack.busy()
        for replica in stack.replicas:
            replica.let_all()
        assert await ended(*first) == [200] * 2


async def test_two_workers_share_the_replicas():
    """Whichever worker a request waits in, it goes when the other worker's requests have ended.

    How many wait is not certain: workers hear of each other's requests a little later.
    """
    async with GatedStack(workers=2, transport="grpc") as stack:
        tasks = [stack.ask() for _ in range(10)]

        async def all_came() -> bool:
            sent = sum(len(replica.held) for replica in stack.replicas)
            return sent + await stack.count("tidegate_picker_waiting") == 10

        assert await eventually(all_came)
        for replica in stack.replicas:
            replica.let_all()
        assert await ended(*tasks) == [200] * 10
        assert sum(len(replica.headers) for replica in stack.replicas) == 10
