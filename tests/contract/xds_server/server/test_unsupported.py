"""What the ADS port does not serve says so."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from envoy.service.cluster.v3 import cds_pb2_grpc
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from envoy.service.endpoint.v3 import eds_pb2_grpc
from envoy.service.listener.v3 import lds_pb2_grpc
from envoy.service.route.v3 import rds_pb2_grpc
from envoy.service.runtime.v3 import rtds_pb2_grpc
from envoy.service.secret.v3 import sds_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tidegate_api.names import LISTENER_TYPE, NODE_AUDIENCE_KEY, POOL_TYPE, SHORT_TYPE
from xds_server.observability import XdsMetrics
from xds_server.protocol.messages import ProtocolError
from xds_server.protocol.publication import Stage
from xds_server.protocol.snapshot import Snapshot
from xds_server.server.service import AdsServer
from xds_server.server.unsupported import check_type, refused_method

WAIT_S = 60.0

STREAMS = {
    (cds_pb2_grpc.ClusterDiscoveryServiceStub, "Clusters"),
    (eds_pb2_grpc.EndpointDiscoveryServiceStub, "Endpoints"),
    (lds_pb2_grpc.ListenerDiscoveryServiceStub, "Listeners"),
    (rds_pb2_grpc.RouteDiscoveryServiceStub, "Routes"),
    (rtds_pb2_grpc.RuntimeDiscoveryServiceStub, "Runtime"),
    (sds_pb2_grpc.SecretDiscoveryServiceStub, "Secrets"),
}


@asynccontextmanager
async def served():
    """Start a server; give it, its address and a channel to it."""
    server = AdsServer(XdsMetrics(CollectorRegistry()))
    address = await server.start("127.0.0.1:0")
    try:
        async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(WAIT_S):
            yield server, address, channel
    finally:
        await server.stop(grace=0)


async def refused(call) -> grpc.aio.AioRpcError:
    """Read from a call until it fails."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    return error.value


@pytest.mark.parametrize("form", ["Stream", "Delta"])
async def test_a_stream_per_type_is_told_to_use_ads(form: str) -> None:
    """With the address; the operator sees it too."""
    async with served() as (server, address, channel):
        for stub, name in STREAMS:
            error = await refused(getattr(stub(channel), form + name)())
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED
            assert error.details().startswith("there is no service per resource type (/envoy.")
            assert f"use ADS at {address} " in error.details()
        found = server.refusals.newest()
        assert len(found) == len(STREAMS)
        assert {e.peer.rpartition(":")[0] for e in found} == {"ipv4:127.0.0.1"}


async def test_a_unary_fetch_is_told_to_use_ads() -> None:
    """Polling exists for each type."""
    async with served() as (_, _, channel):
        stub = cds_pb2_grpc.ClusterDiscoveryServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="polling is not served") as error:
            await stub.FetchClusters(discovery_pb2.DiscoveryRequest())
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("method", "begins"),
    [
        ("/v3/discovery:clusters", "REST is not served (/v3/discovery:clusters); use ADS at a:1 ("),
        ("/v2/discovery:listeners", "REST is not served"),
        ("/envoy.api.v2.ClusterDiscoveryService/StreamClusters", "version 2 of the xDS API"),
        (
            "/envoy.service.discovery.v2.AggregatedDiscoveryService/StreamAggregatedResources",
            "version 2 of the xDS API",
        ),
        ("/envoy.service.route.v3.RouteDiscoveryService/FetchRoutes", "polling is not served"),
        (
            "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats",
            "there is no service",
        ),
        ("/a.B/C", "/a.B/C is not served here"),
        ("", " is not served here"),
    ],
)
def test_the_sentence_names_what_was_called(method: str, begins: str) -> None:
    """And what to use instead."""
    said = refused_method(method, "a:1")
    assert said.startswith(begins)
    assert "use ADS at a:1" in said


@given(st.text(max_size=3000))
def test_a_sentence_is_bounded_whatever_is_called(method: str) -> None:
    """Peers choose the words in it."""
    assert len(refused_method(method, "a:1")) < 400


@pytest.mark.parametrize("type_url", [*SHORT_TYPE, ""])
def test_served_types_pass(type_url: str) -> None:
    """The protocol layer refuses an empty type in its own words."""
    assert check_type(type_url) == ""


@pytest.mark.parametrize(
    ("type_url", "hint"),
    [
        ("envoy.config.cluster.v3.Cluster", "did you mean type.googleapis.com/envoy.config.cl"),
        ("type.googleapis.com/envoy.api.v2.Cluster", "is no resource type of xDS v3"),
        ("type.googleapis.com/envoy.config.cluster.v3.Clusters", "did you mean type.googleapis"),
        ("CDS", "served are"),
        ("type.googleapis.com/google.protobuf.Struct", "served are"),
    ],
)
def test_a_wrong_type_is_an_error_with_a_hint(type_url: str, hint: str) -> None:
    """Otherwise its client would wait for ever."""
    with pytest.raises(ProtocolError) as error:
        check_type(type_url)
    assert hint in str(error.value)


@given(st.text(max_size=3000))
def test_any_type_is_judged(type_url: str) -> None:
    """Whatever is asked for, there is one bounded sentence."""
    try:
        said = check_type(type_url)
    except ProtocolError as error:
        said = str(error)
    assert len(said) < 400


@pytest.mark.parametrize("variant", ["sotw", "delta"])
async def test_another_type_of_envoys_leaves_the_stream_alone(variant: str) -> None:
    """X9: an Envoy that asks for scoped routes too still gets its listeners; operators see it."""
    other = "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration"
    sotw = variant == "sotw"
    make = discovery_pb2.DiscoveryRequest if sotw else discovery_pb2.DeltaDiscoveryRequest
    async with served() as (server, _, channel):
        server.publish([Stage("add", "envoy", Snapshot.of({LISTENER_TYPE: {"l": b"1"}}))])
        stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
        call = stub.StreamAggregatedResources() if sotw else stub.DeltaAggregatedResources()
        for _ in range(3):
            await call.write(make(node={"id": "gw-1"}, type_url=other))
        await call.write(make(type_url=LISTENER_TYPE))
        assert (await call.read()).type_url == LISTENER_TYPE
        (found,) = server.refusals.newest()
        assert (found.node, found.count) == ("gw-1", 1)
        assert other in found.reason


async def test_a_wrong_type_ends_the_stream_with_a_sentence() -> None:
    """The client sees the reason, and so does the operator."""
    async with served() as (server, _, channel):
        call = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel).StreamAggregatedResources()
        wrong = discovery_pb2.DiscoveryRequest(node={"id": "gw-1"}, type_url="CDS")
        await call.write(wrong)
        error = await refused(call)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert error.details().startswith("'CDS' is no resource type of xDS v3; served are ")
        (found,) = server.refusals.newest()
        assert (found.node, found.reason) == ("gw-1", error.details())


async def test_a_node_without_an_id_is_shown() -> None:
    """By its address, as it has no name."""
    async with served() as (server, _, channel):
        call = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel).StreamAggregatedResources()
        await call.write(discovery_pb2.DiscoveryRequest(type_url=LISTENER_TYPE))
        assert (await refused(call)).code() == grpc.StatusCode.INVALID_ARGUMENT
        (found,) = server.refusals.newest()
        assert found.node == ""
        assert found.reason.startswith("the first request names no node")


async def test_an_unknown_audience_is_refused() -> None:
    """A client that wants something else must not get an Envoy's resources."""
    async with served() as (server, _, channel):
        call = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel).DeltaAggregatedResources()
        request = discovery_pb2.DeltaDiscoveryRequest(type_url=LISTENER_TYPE)
        request.node.id = "x"
        request.node.metadata[NODE_AUDIENCE_KEY] = "grpc"
        await call.write(request)
        error = await refused(call)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "names no audience: 'grpc'; write 'envoy' or 'picker'" in error.details()
        assert len(server.refusals.newest()) == 1


async def test_a_node_may_name_its_audience() -> None:
    """Whatever its cluster is called."""
    async with served() as (server, _, channel):
        server.publish([Stage("use", "picker", Snapshot.of({POOL_TYPE: {"p": b"1"}}))])
        call = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel).StreamAggregatedResources()
        request = discovery_pb2.DiscoveryRequest(type_url=POOL_TYPE)
        request.node.id = "x"
        request.node.metadata[NODE_AUDIENCE_KEY] = "picker"
        await call.write(request)
        assert (await call.read()).type_url == POOL_TYPE
