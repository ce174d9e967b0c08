"""The picker's side of ADS: a response is applied completely or not at all."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from envoy.service.discovery.v3 import ads_pb2_grpc
from envoy.service.discovery.v3 import discovery_pb2 as pb

from ext_proc.control.fleet_client import MAX_POOLS, FleetClient, PoolWatch, ServerError
from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import ACCEPTED_METADATA, PICKER_NODE_CLUSTER, POOL_TYPE


def pool(name="llm", **changes):
    values = {"name": name, "variants": [pool_pb2.Variant(name="stable", weight=1)]}
    return pool_pb2.Pool(**{**values, **changes})


def response(*pools, removed=(), nonce="n1", version="v1", type_url=POOL_TYPE):
    made = pb.DeltaDiscoveryResponse(
        type_url=type_url, nonce=nonce, system_version_info=version, removed_resources=removed
    )
    for each in pools:
        resource = made.resources.add(name=each.name, version=version)
        resource.resource.type_url = POOL_TYPE
        resource.resource.value = each.SerializeToString()
    return made


class Taken:
    """Records the pools that were put in force."""

    def __init__(self):
        self.pools = None
        self.refuse = None

    def __call__(self, pools):
        if self.refuse is not None:
            raise self.refuse
        self.pools = dict(pools)


@pytest.fixture
def taken():
    return Taken()


@pytest.fixture
def watch(taken):
    return PoolWatch("picker-1", taken)


def test_hello(watch):
    """The first request names only the node: the legacy wildcard."""
    request = watch.first_request()
    assert (request.node.id, request.node.cluster) == ("picker-1", PICKER_NODE_CLUSTER)
    assert request.type_url == POOL_TYPE
    assert not request.resource_names_subscribe
    assert not request.initial_resource_versions


def test_a_response_is_acknowledged_once_it_is_in_force(watch, taken):
    """The ACK carries the nonce and no error; by then the router has the pools."""
    request = watch.answer(response(pool()))
    assert request.response_nonce == "n1"
    assert not request.HasField("error_detail")
    assert set(taken.pools) == {"llm"}
    assert watch.synced
    assert watch.first_request().initial_resource_versions == {"llm": "v1"}


def test_changes_and_removals(watch, taken):
    """A later response changes the pools that it names; others stay."""
    watch.answer(response(pool(), pool("vision"), pool("old")))
    watch.answer(response(pool(models=["m"]), removed=["old", "never"], nonce="n2", version="v2"))
    assert set(taken.pools) == {"llm", "vision"}
    assert taken.pools["llm"].models == {"m"}
    assert watch.state()["pools"] == {"llm": "v2", "vision": "v1"}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (response(pool("other"), pool(variants=[]), nonce="n2"), "pool 'llm': 0 variants"),
        (response(type_url="type.googleapis.com/x", nonce="n2"), "requested"),
        (
            pb.DeltaDiscoveryResponse(
                type_url=POOL_TYPE, nonce="n2", resources=[pb.Resource(name="llm")]
            ),
            "resource 'llm' is a",
        ),
    ],
)
def test_a_bad_response_is_refused_whole(watch, taken, bad, why):
    """The NACK states the reason, and the previous state stays in force."""
    watch.answer(response(pool()))
    request = watch.answer(bad)
    assert request.response_nonce == "n2"
    assert why in request.error_detail.message
    assert request.error_detail.code == 3
    assert set(taken.pools) == {"llm"}
    assert watch.first_request().initial_resource_versions == {"llm": "v1"}


def test_a_resource_that_does_not_parse_or_lies_about_its_name(watch):
    """Each is named in the NACK."""
    bad = response(pool("a"), pool("b"))
    bad.resources[0].resource.value = b"\xff"
    bad.resources[1].name = "c"
    message = watch.answer(bad).error_detail.message
    assert "resource 'a' is not a Pool" in message
    assert "resource 'c' contains pool 'b'" in message


def test_what_the_router_refuses_is_refused(watch, taken):
    """The router detects an unknown policy; the server gets the reason, and can recover."""
    taken.refuse = ValueError("no policy 'x'")
    assert watch.answer(response(pool())).error_detail.message == "no policy 'x'"
    assert not watch.synced
    taken.refuse = None
    assert not watch.answer(response(pool())).HasField("error_detail")
    assert watch.error is None


def test_pools_are_bounded(watch):
    """More pools than the bound are refused."""
    made = watch.answer(response(*(pool(f"p{number}") for number in range(MAX_POOLS + 1))))
    assert f"the maximum is {MAX_POOLS}" in made.error_detail.message


def test_no_pools_at_all_is_known(watch, taken):
    """An empty response counts as a response."""
    watch.answer(response())
    assert watch.synced
    assert taken.pools == {}


class Server(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
    """A control server that sends one response per stream and ends on demand."""

    def __init__(self):
        self.requests = asyncio.Queue()
        self.end = asyncio.Event()
        self.status = None

    async def DeltaAggregatedResources(self, _, context):  # noqa: N802 - gRPC's name
        await self.requests.put(await context.read())
        await context.write(response(pool()))
        await self.requests.put(await context.read())
        await self.end.wait()
        self.end.clear()
        if self.status is not None:
            await context.abort(self.status, "go away")


@pytest.fixture
async def served():
    server, servicer = grpc.aio.server(), Server()
    ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield servicer, channel
    await server.stop(0)


@pytest.mark.parametrize("status", [None, grpc.StatusCode.UNAVAILABLE])
async def test_a_lost_server_freezes_membership_and_is_found_again(served, watch, taken, status):
    """The client reconnects by itself and sends its versions; nothing is discarded meanwhile."""
    servicer, channel = served
    servicer.status = status
    connected = []
    client = FleetClient(channel, watch, rng=lambda: 0.0, on_connected=connected.append)
    task = asyncio.create_task(client.run())
    async with asyncio.timeout(60):
        await client.ready.wait()
        first_request, ack = await servicer.requests.get(), await servicer.requests.get()
        assert not first_request.initial_resource_versions
        assert ack.response_nonce == "n1"
        assert client.state()["connected_s"] is not None
        servicer.end.set()
        first_request = await servicer.requests.get()
        assert first_request.initial_resource_versions == {"llm": "v1"}
        assert set(taken.pools) == {"llm"}
        await servicer.requests.get()
    assert connected == [True, False, True]
    assert client.state()["last_loss"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_client_that_holds_the_newest_state_is_connected_without_a_response(watch):
    """After a restart of the control server nothing need be sent, and the client is connected."""

    async def accept(_, context):
        await context.read()
        await context.send_initial_metadata(((ACCEPTED_METADATA, "1"),))
        await asyncio.Event().wait()

    method = grpc.stream_stream_rpc_method_handler(accept)
    service = "envoy.service.discovery.v3.AggregatedDiscoveryService"
    handler = grpc.method_handlers_generic_handler(service, {"DeltaAggregatedResources": method})
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    connected = asyncio.Event()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        told = lambda on: connected.set() if on else None  # noqa: E731 - one line of a test
        client = FleetClient(channel, watch, rng=lambda: 0.0, on_connected=told)
        task = asyncio.create_task(client.run())
        async with asyncio.timeout(60):
            await connected.wait()
        assert not watch.synced
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await server.stop(0)


async def test_a_server_that_speaks_something_else_is_given_up(watch):
    """A message that cannot be decoded ends the stream, not the picker."""

    async def babble(_, context):
        await context.read()
        await context.write(b"\xff\xff\xff")

    method = grpc.stream_stream_rpc_method_handler(babble)
    service = "envoy.service.discovery.v3.AggregatedDiscoveryService"
    handler = grpc.method_handlers_generic_handler(service, {"DeltaAggregatedResources": method})
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        client = FleetClient(channel, watch, rng=lambda: 0.0, on_connected=lambda _: None)
        with pytest.raises(ServerError, match="invalid DeltaDiscoveryResponse"):
            await client._follow()
    await server.stop(0)
    assert not watch.synced
