"""Watches of readiness and streams of reflection over a socket: what they say, and their bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from gateway.questions import Scope
from gateway.streams import watches
from gateway.streams.reflection import Reflection
from gateway.streams.watches import LOOK_S, REFLECTIONS, REPEAT_S, WATCH
from tidegate_api.names import GATEWAY_SERVICE, IN_SIGHT_HEADER

from .conftest import channel, saying

if TYPE_CHECKING:
    from .conftest import Lab

SERVING, NOT_SERVING = 1, 2
(V1, *_) = REFLECTIONS


def watch(to: Any, service: str = "", names: str = "*") -> Any:
    """Begin a watch."""
    return to.unary_stream(
        WATCH,
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )(
        health_pb2.HealthCheckRequest(service=service),
        metadata=((IN_SIGHT_HEADER, names),),
        timeout=60,
    )


async def settled(lab: Lab, kind: str, count: int) -> None:
    """Wait until so many streams are open."""
    async with asyncio.timeout(60):
        while lab.calls.streams.open[kind] != count:  # noqa: ASYNC110 - no event to await
            await asyncio.sleep(0)


async def test_a_watcher_is_told_at_once_and_on_change(lab: Lab):
    """Of the pools in its sight, as `Check` would say."""
    status = [200]

    async def act(name: str, writer: asyncio.StreamWriter) -> None:
        await saying(status[0], {})(name, writer)

    await lab.replicas(act)
    async with channel(lab) as to:
        call, other = watch(to), watch(to, names="another-pool")
        assert (await call.read()).status == SERVING
        assert (await other.read()).status == NOT_SERVING
        other.cancel()
        await settled(lab, "watch", 1)  # or it could take the looks of the first
        status[0] = 400
        for _ in range(2):
            lab.looks.put_nowait(None)
        assert (await call.read()).status == NOT_SERVING
        status[0] = 200
        for _ in range(4):
            lab.looks.put_nowait(None)
        assert (await call.read()).status == SERVING


async def test_what_has_not_changed_is_said_again_each_minute(lab: Lab):
    """So a stream that a proxy takes for dead is not, and one that is ends."""
    stream = lab.calls.streams.readiness("", Scope(None))
    for _ in range(round(REPEAT_S / LOOK_S)):
        lab.looks.put_nowait(None)
    assert not await anext(stream)
    assert lab.now == 0
    assert not await anext(stream)
    assert lab.now == REPEAT_S
    await stream.aclose()


async def test_watchers_of_the_same_pools_share_their_looks(lab: Lab):
    """Replicas are not asked more often for more watchers."""
    await lab.replicas(saying(200, {}))
    streams = [lab.calls.streams.readiness("", Scope(None)) for _ in range(20)]
    assert await asyncio.gather(*map(anext, streams)) == [True] * 20
    assert len(lab.asked) == 1
    for stream in streams:
        await stream.aclose()


async def test_the_gateway_itself_is_always_served(lab: Lab):
    """Whatever its fleet is."""
    async with channel(lab) as to:
        call = watch(to, GATEWAY_SERVICE)
        assert (await call.read()).status == SERVING


async def test_watches_are_bounded_and_their_places_come_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    """A further one is told what to do instead."""
    monkeypatch.setattr(watches, "MAX_WATCHES", 2)
    async with channel(lab) as to:
        calls = [watch(to) for _ in range(2)]
        for call in calls:
            await call.read()
        with pytest.raises(grpc.aio.AioRpcError, match="use Check") as error:
            await watch(to).read()
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        calls[0].cancel()
        await settled(lab, "watch", 1)
        assert (await watch(to).read()).status == NOT_SERVING
    await settled(lab, "watch", 0)


class Reader:
    """A peer of a stream that reads nothing."""

    def __init__(self) -> None:
        self.aborted: list[str] = []

    async def write(self, _: bytes) -> None:
        """Wait for room that never comes."""
        await asyncio.Event().wait()

    async def abort(self, _: Any, text: str) -> None:
        """End the call."""
        self.aborted.append(text)
        raise asyncio.CancelledError


async def test_a_watcher_that_takes_nothing_is_let_go(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    """Its place is free again; no look is made meanwhile."""
    monkeypatch.setattr(watches, "IDLE_S", 0.01)
    reader = Reader()
    with pytest.raises(asyncio.CancelledError):
        await lab.calls.streams.watch(b"\xff", reader, Scope(None))
    assert reader.aborted == ["no message was taken for 0 s"]
    assert lab.calls.streams.open["watch"] == 0


def listing() -> bytes:
    """Return a request for the list of services."""
    made = Reflection(watches._DESCRIPTORS.read_bytes(), "v1")._request(list_services="*")
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("path", REFLECTIONS)
@pytest.mark.parametrize("admin", [False, True])
async def test_reflection_answers_each_request_in_its_turn(lab: Lab, path: str, admin: bool):
    """On both ports, until the client has no more."""
    async with channel(lab, admin=admin) as to:
        call = to.stream_stream(path)(iter([listing(), b"\xff", listing()]), timeout=60)
        said = [each async for each in call]
        assert said[0] == said[2]
        assert b"inference.GRPCInferenceService" in said[0]
        assert b"cannot be read" in said[1]
        assert await call.code() == grpc.StatusCode.OK


async def test_reflections_are_bounded_in_number_length_and_silence(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    """Who asks for more is refused, and one that says nothing keeps no place."""
    monkeypatch.setattr(watches, "MAX_REFLECTIONS", 1)
    monkeypatch.setattr(watches, "MAX_REQUESTS", 2)
    async with channel(lab) as to:
        first = to.stream_stream(V1)(timeout=60)
        await first.write(listing())
        await first.read()
        second = to.stream_stream(V1)(timeout=60)
        assert await second.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        await first.write(listing())
        await first.read()
        assert await first.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        await settled(lab, "reflection", 0)
        monkeypatch.setattr(watches, "IDLE_S", 0.01)
        silent = to.stream_stream(V1)(timeout=60)
        assert await silent.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert await silent.details() == "no request for 0 s"
    await settled(lab, "reflection", 0)


async def test_a_request_above_the_bound_ends_its_stream(lab: Lab):
    """The port takes no longer messages."""
    async with channel(lab) as to:
        call = to.stream_stream(V1)(iter([b"x" * 100_000]), timeout=60)
        assert await call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    await settled(lab, "reflection", 0)
