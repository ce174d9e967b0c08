"""The ADS server over real gRPC channels, without Envoy."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import tracemalloc
from contextlib import asynccontextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from tidegate_api.fleet.v1 import report_pb2, report_pb2_grpc
from tidegate_api.names import (
    ACCEPTED_METADATA,
    CLUSTER_TYPE,
    LISTENER_TYPE,
    PICKER_NODE_CLUSTER,
    POOL_TYPE,
)
from xds_server.observability import XdsMetrics
from xds_server.protocol.publication import Stage
from xds_server.protocol.snapshot import Snapshot
from xds_server.server import port as server_options
from xds_server.server import service
from xds_server.server.service import AdsServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WAIT_S = 60.0


class Peer:
    """A client of either variant, driven by the test."""

    def __init__(self, channel: grpc.aio.Channel, variant: str, node: str, cluster: str) -> None:
        stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
        sotw = variant == "sotw"
        self.call = stub.StreamAggregatedResources() if sotw else stub.DeltaAggregatedResources()
        self.make = discovery_pb2.DiscoveryRequest if sotw else discovery_pb2.DeltaDiscoveryRequest
        self.node = {"id": node, "cluster": cluster}

    async def ask(self, type_url: str) -> None:
        await self.call.write(self.make(node=self.node, type_url=type_url))

    async def read(self) -> Any:
        async with asyncio.timeout(WAIT_S):
            return await self.call.read()

    async def answer(self, response: Any, error: str | None = None) -> None:
        request = self.make(type_url=response.type_url, response_nonce=response.nonce)
        if error is not None:
            request.error_detail.message = error
        await self.call.write(request)


class Rig:
    """A started server with one channel."""

    def __init__(self, server: AdsServer, registry: CollectorRegistry, address: str) -> None:
        self.server, self.registry, self.address = server, registry, address
        self.channel = grpc.aio.insecure_channel(address)

    def peer(self, variant: str = "sotw", node: str = "gw-1", cluster: str = "gateway") -> Peer:
        return Peer(self.channel, variant, node, cluster)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"tidegate_xds_{name}", labels)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110 - the server raises no event for tests
                await asyncio.sleep(0.005)


class Elsewhere:
    """A client that lives while the event loop stands still; from the second answer on it waits."""

    def __init__(self, address: str, node: str) -> None:
        self.read = 0
        self.goes_on = threading.Event()
        self._requests: SimpleQueue[Any] = SimpleQueue()
        asked = discovery_pb2.DiscoveryRequest(type_url=LISTENER_TYPE)
        asked.node.id, asked.node.cluster = node, "gateway"
        self._requests.put(asked)
        self._channel = grpc.insecure_channel(address)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(self._channel)
        with suppress(grpc.RpcError):
            for response in stub.StreamAggregatedResources(iter(self._requests.get, None)):
                self.read += 1
                if self.read > 1:
                    self.goes_on.wait()
                told = {"version_info": response.version_info, "response_nonce": response.nonce}
                self._requests.put(
                    discovery_pb2.DiscoveryRequest(type_url=response.type_url, **told)
                )

    def close(self) -> None:
        """End the stream."""
        self._requests.put(None)
        self._channel.close()
        self._thread.join()


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    """Start a server on a free port and stop it again."""
    registry = CollectorRegistry()
    server = AdsServer(XdsMetrics(registry))
    started = Rig(server, registry, await server.start("127.0.0.1:0"))
    try:
        yield started
    finally:
        await started.channel.close()
        await server.stop(grace=0)


def stage(content: str, label: str = "add") -> Stage:
    """Build an Envoy stage with one listener of this content."""
    return Stage(label, "envoy", Snapshot.of({LISTENER_TYPE: {"l": content.encode()}}))


async def heard(r: Rig, variant: str = "sotw", node: str = "gw-1") -> Peer:
    """Return a client that has answered before."""
    r.server.publish([stage("0")])
    peer = r.peer(variant, node)
    await peer.ask(LISTENER_TYPE)
    await peer.answer(await peer.read())
    await r.until(lambda: all(each.types[0].state == "SYNCED" for each in r.server.clients()))
    return peer


@pytest.mark.parametrize("variant", ["sotw", "delta"])
async def test_a_publication_reaches_a_client_and_returns(variant: str) -> None:
    """The client gets the snapshot, and the publication ends with its acknowledgement."""
    async with rig() as r:
        peer = await heard(r, variant)
        publication = r.server.publish(lambda: [stage("2")])
        assert not r.server.settled
        response = await peer.read()
        packed = response.resources[0]
        body = packed.value if variant == "sotw" else packed.resource.value
        assert body == b"2"
        await peer.answer(response)
        outcome = await publication.wait(WAIT_S)
        assert (outcome.state, outcome.clients, outcome.acked) == ("done", 1, 1)
        assert (outcome.problems, outcome.channels) == ((), ("LDS",))
        assert outcome.elapsed_s is not None
        assert r.server.settled
        (view,) = r.server.clients()
        assert (view.node, view.kind, view.protocol) == ("gw-1", "envoy", variant)
        assert view.peer.startswith("ipv4:127.0.0.1")


async def test_a_client_without_news_hears_that_it_is_accepted() -> None:
    """Nothing was published, so nothing is sent; the initial metadata come all the same."""
    async with rig() as r:
        peer = r.peer("delta", "picker-1", PICKER_NODE_CLUSTER)
        await peer.ask(POOL_TYPE)
        async with asyncio.timeout(WAIT_S):
            assert (ACCEPTED_METADATA, "1") in tuple(await peer.call.initial_metadata())


@pytest.mark.parametrize("variant", ["sotw", "delta"])
async def test_a_nack_is_reported_with_the_clients_message(variant: str) -> None:
    """X12, X61: the outcome has type and message, and nothing is sent again."""
    async with rig() as r:
        peer = await heard(r, variant)
        publication = r.server.publish([stage("bad")])
        await peer.answer(await peer.read(), error="no such filter")
        outcome = await publication.wait(WAIT_S)
        (problem,) = outcome.problems
        assert (problem.client, problem.state, problem.type, problem.message) == (
            "gw-1",
            "NACKED",
            "LDS",
            "no such filter",
        )
        assert (await r.server.publish([stage("bad")]).wait(WAIT_S)).acked == 0
        assert r.value("nacks_total", type="LDS") == 1
        assert r.value("pushes_total", type="LDS") == 2


async def test_waiting_is_bounded_by_the_caller() -> None:
    """If a client does not answer, the caller gets the current outcome."""
    async with rig() as r:
        await heard(r)
        publication = r.server.publish([stage("1")])
        assert (await publication.wait(0.01)).state == "waiting"


async def test_the_stage_deadline_fires_by_itself() -> None:
    """X63: a client without an answer is STALLED; the publication ends without another event."""
    async with rig() as r:
        await heard(r)
        snapshot = Snapshot.of({LISTENER_TYPE: {"l": b"1"}})
        publication = r.server.publish([Stage("add", "envoy", snapshot, deadline_s=0.05)])
        outcome = await publication.wait(WAIT_S)
        assert (outcome.state, outcome.problems[0].state) == ("done", "STALLED")


async def test_a_server_that_stood_still_reads_the_answers_before_it_judges() -> None:
    """What came while its process did not run is in time; who has not answered is late then."""
    async with rig() as r:
        silent = await heard(r)
        others = [Elsewhere(r.address, f"gw-{number}") for number in (2, 3)]
        await r.until(lambda: [each.read for each in others] == [1, 1])
        await r.until(lambda: all(each.types[0].state == "SYNCED" for each in r.server.clients()))
        snapshot = Snapshot.of({LISTENER_TYPE: {"l": b"1"}})
        publication = r.server.publish([Stage("add", "envoy", snapshot, deadline_s=0.2)])
        await silent.read()
        await r.until(lambda: [each.read for each in others] == [2, 2])
        for each in others:
            each.goes_on.set()
        time.sleep(0.5)  # noqa: ASYNC251 - this process stands still
        outcome = await publication.wait(WAIT_S)
        for each in others:
            each.close()
        assert (outcome.clients, outcome.acked) == (3, 2)
        assert [each.state for each in outcome.problems] == ["STALLED"]


async def test_pickers_are_another_audience() -> None:
    """The node's cluster determines whether a client gets pools or Envoy's resources."""
    async with rig() as r:
        r.server.publish(
            [stage("1"), Stage("use", "picker", Snapshot.of({POOL_TYPE: {"p": b"x"}}))]
        )
        picker = r.peer("delta", "p-1", PICKER_NODE_CLUSTER)
        await picker.ask(LISTENER_TYPE)
        await picker.ask(POOL_TYPE)
        assert (await picker.read()).type_url == POOL_TYPE
        assert r.server.clients()[0].kind == "picker"
        assert r.server.in_force("picker") is not None


@pytest.mark.parametrize("variant", ["sotw", "delta"])
async def test_an_empty_type_ends_the_stream(variant: str) -> None:
    """X2: with INVALID_ARGUMENT and a message."""
    async with rig() as r:
        peer = r.peer(variant)
        await peer.ask("")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await peer.read()
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "type_url" in str(error.value.details())
        await r.until(lambda: not r.server.clients())


async def test_a_client_without_a_name_is_rejected() -> None:
    """X1: status rows and logs need a node id."""
    async with rig() as r:
        peer = r.peer(node="")
        await peer.ask(CLUSTER_TYPE)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await peer.read()
        assert "node.id" in str(error.value.details())


async def test_every_end_of_a_stream_removes_its_client() -> None:
    """X6: half-close and cancel leave neither rows nor tasks nor gauges behind."""
    async with rig() as r:
        tasks = len(asyncio.all_tasks())
        for number in range(30):
            peer = r.peer("delta" if number % 2 else "sotw", f"gw-{number}")
            await peer.ask(LISTENER_TYPE)
            await r.until(r.server.clients)
            if number % 3:
                peer.call.cancel()
            else:
                await peer.call.done_writing()
                assert await peer.read() is grpc.aio.EOF
            await r.until(lambda: not r.server.clients())
        assert r.server._connections == {}
        assert r.value("streams", audience="envoy", protocol="sotw") == 0
        await r.until(lambda: len(asyncio.all_tasks()) <= tasks + 1)


async def test_two_streams_of_one_node_are_both_shown() -> None:
    """Both are served."""
    async with rig() as r:
        r.server.publish([stage("1")])
        for variant in ("sotw", "delta"):
            peer = r.peer(variant)
            await peer.ask(LISTENER_TYPE)
            assert (await peer.read()).type_url == LISTENER_TYPE
        found = [(view.protocol, view.twins) for view in r.server.clients()]
        assert found == [("sotw", 2), ("delta", 2)]
        assert len(r.server._connections) == 2


async def test_stopping_ends_streams_with_unavailable() -> None:
    """X6, X65: promptly, with a status on which clients reconnect."""
    async with rig() as r:
        peer = r.peer()
        await peer.ask(LISTENER_TYPE)
        await r.until(r.server.clients)
        await r.server.stop(grace=WAIT_S)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await peer.read()
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_stop_waits_for_what_serves_the_streams() -> None:
    """No handler is left in the loop, which may end at once, also without a grace time."""

    def serving() -> int:
        return sum(task.get_name() == "rpc_task" for task in asyncio.all_tasks())

    async with rig() as r:
        for number in range(3):
            await r.peer("delta", f"gw-{number}").ask(LISTENER_TYPE)
        await r.until(lambda: len(r.server.clients()) == 3)
        assert serving() == 3
        await r.server.stop(grace=0)
        assert serving() == 0


async def test_a_silent_stream_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without a first request is closed after a time limit."""
    monkeypatch.setattr(service, "FIRST_REQUEST_S", 0.02)
    async with rig() as r:
        peer = r.peer()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await peer.read()
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_the_number_of_streams_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream above the bound is rejected; the others stay."""
    monkeypatch.setattr(service, "MAX_STREAMS", 1)
    async with rig() as r:
        first = r.peer()
        await first.ask(LISTENER_TYPE)
        await r.until(r.server.clients)
        second = r.peer(node="gw-2")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await second.read()
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(r.server.clients()) == 1


async def test_requests_of_a_client_that_does_not_read_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """X63: even if it acknowledges unread messages; above the bound its requests wait."""
    monkeypatch.setattr(service, "MAX_OUTBOX", 4)
    async with rig() as r:
        big = Snapshot.of({CLUSTER_TYPE: {"c": b"x" * 2**20}})
        r.server.publish([Stage("add", "envoy", big)])
        peer = r.peer("delta")
        await peer.ask(CLUSTER_TYPE)
        prefix = (await peer.read()).nonce.rpartition("-")[0]
        for number in range(1, 41):
            nonce = f"{prefix}-{number}"
            names = {"resource_names_subscribe": ["c"], "response_nonce": nonce}
            await peer.call.write(peer.make(type_url=CLUSTER_TYPE, **names))
        (connection,) = r.server._connections.values()
        assert len(connection.outbox) <= 4
        for _ in range(40):
            await peer.read()


async def test_reports_are_summed_and_removed_with_their_stream() -> None:
    """In-flight counts of all pickers are summed; a disconnected picker does not count."""
    async with rig() as r:
        stub = report_pb2_grpc.PickerReportsStub(r.channel)
        calls = []
        for picker in ("p-1", "p-2"):
            call: Any = stub.Report()
            loads = [report_pb2.EndpointLoad(id="e1", in_flight=2)]
            await call.write(report_pb2.PickerReport(picker_id=picker, endpoints=loads))
            calls.append(call)
        await r.until(lambda: r.server.in_flight() == {"e1": 4})
        await calls[0].done_writing()
        await calls[0]
        assert r.server.in_flight() == {"e1": 2}
        calls[1].cancel()
        await r.until(lambda: r.server.in_flight() == {})


async def test_a_drain_waits_for_reports() -> None:
    """A stage with wait_for_drained begins when the picker reports zero."""
    async with rig() as r:
        call: Any = report_pb2_grpc.PickerReportsStub(r.channel).Report()
        loads = [report_pb2.EndpointLoad(id="e1", in_flight=1)]
        await call.write(report_pb2.PickerReport(picker_id="p", endpoints=loads))
        await r.until(r.server.in_flight)
        snapshot = Snapshot.of({CLUSTER_TYPE: {}})
        publication = r.server.publish(
            [Stage("remove", "envoy", snapshot, wait_for_drained=frozenset({"e1"}))]
        )
        assert publication.outcome.state == "waiting"
        assert r.server.in_force("envoy") is None
        await call.write(report_pb2.PickerReport(picker_id="p"))
        assert (await publication.wait(WAIT_S)).state == "done"
        call.cancel()


async def test_health_is_served_for_the_whole_and_for_ads() -> None:
    """Standard gRPC health, for any orchestrator."""
    async with rig() as r:
        stub = health_pb2_grpc.HealthStub(r.channel)
        for name in ("", "envoy.service.discovery.v3.AggregatedDiscoveryService"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_port_in_use_is_an_error() -> None:
    """Two servers on one port would each get half of the clients."""
    async with rig() as r:
        other = AdsServer(XdsMetrics(CollectorRegistry()))
        with pytest.raises(OSError, match="cannot listen on"):
            await other.start(r.address)


def test_idle_pings_do_not_end_the_connection() -> None:
    """X7: Envoy's keepalive on an idle stream must not lead to GOAWAY (reference 1.5)."""
    options = dict(server_options.SERVER_OPTIONS)
    assert options["grpc.http2.max_ping_strikes"] == 0
    assert options["grpc.max_receive_message_length"] == server_options.MAX_RECEIVE_BYTES


async def test_a_thousand_streams_leave_nothing_behind() -> None:
    """X6: no task, no client, and no memory that grows with the number of streams."""
    async with rig() as made:
        made.server.publish([Stage("add", "envoy", Snapshot.of({CLUSTER_TYPE: {"a": b"a"}}))])

        async def once(number: int) -> None:
            peer = made.peer("sotw" if number % 2 else "delta", node=f"n{number}")
            await peer.ask(CLUSTER_TYPE)
            assert (await peer.read()).type_url == CLUSTER_TYPE
            if number % 3:
                peer.call.cancel()
            else:
                await peer.call.done_writing()

        async def rounds(count: int) -> int:
            for start in range(0, count, 50):
                await asyncio.gather(*(once(start + number) for number in range(50)))
                await made.until(lambda: not made.server.clients())
            await made.until(lambda: len(asyncio.all_tasks()) <= tasks)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        await once(0)
        tasks = len(asyncio.all_tasks())
        tracemalloc.start()
        try:
            memory = await rounds(100)
            later_memory = await rounds(1000)
        finally:
            tracemalloc.stop()
        assert later_memory - memory < 500_000
