"""A control server that serves clusters only."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from prometheus_client import CollectorRegistry

from support.fleets import endpoint, fleet, pool
from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    EXTENSION_TYPE,
    LISTENER_TYPE,
    PICKER_NODE_CLUSTER,
    POOL_TYPE,
    ROUTE_TYPE,
    RUNTIME_NAME,
    RUNTIME_TYPE,
    SECRET_TYPE,
)
from xds_server.fleet.view import View
from xds_server.observability import XdsMetrics
from xds_server.server import unsupported as module
from xds_server.server.service import AdsServer
from xds_server.snapshots.stages import plan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WAIT_S = 60.0
FRONT = (LISTENER_TYPE, ROUTE_TYPE, EXTENSION_TYPE)
OLD = fleet()
NEW = fleet(pool(default=True, endpoints=[endpoint(1), endpoint(4, variant="canary")]))


class Client:
    """A stream of an Envoy, or of a picker, that acknowledges all it gets."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        variant: str = "sotw",
        node: str = "gw-1",
        cluster: str = "",
    ) -> None:
        stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
        sotw = variant == "sotw"
        self._call = stub.StreamAggregatedResources() if sotw else stub.DeltaAggregatedResources()
        self._make = discovery_pb2.DiscoveryRequest if sotw else discovery_pb2.DeltaDiscoveryRequest
        self._names = "resource_names" if sotw else "resource_names_subscribe"
        self._node = {"id": node, "cluster": cluster}
        self._asked: dict[str, dict[str, Any]] = {}

    async def ask(self, type_url: str, *names: str) -> None:
        """Subscribe to names of a type, or to all of it."""
        self._asked[type_url] = {self._names: names}
        more = self._asked[type_url]
        await self._call.write(self._make(node=self._node, type_url=type_url, **more))

    async def read(self) -> Any:
        """Return the next response, and acknowledge it."""
        response = await self._call.read()
        answer = self._make(type_url=response.type_url, response_nonce=response.nonce)
        if self._names == "resource_names":
            answer.MergeFrom(self._make(**self._asked[response.type_url]))
        await self._call.write(answer)
        return response

    async def end(self) -> grpc.aio.AioRpcError:
        """Return the error that ends the stream."""
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await self._call.read()
        return error.value


@asynccontextmanager
async def rig() -> AsyncIterator[tuple[AdsServer, grpc.aio.Channel]]:
    """Start a server for clusters only, with a fleet."""
    server = AdsServer(XdsMetrics(CollectorRegistry()), "clusters")
    address = await server.start("127.0.0.1:0")
    try:
        async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(WAIT_S):
            server.publish(plan(None, View(OLD)))
            yield server, channel
    finally:
        await server.stop(grace=0)


async def test_envoys_are_published_neither_listeners_nor_routes() -> None:
    """What clusters need stays: endpoints, limits and secrets. Pickers miss nothing."""
    async with rig() as (server, _):
        held = server.in_force("envoy")
        assert held is not None
        assert set(held.type_urls) == {CLUSTER_TYPE, ENDPOINT_TYPE, RUNTIME_TYPE, SECRET_TYPE}
        assert set(held.plain.type_urls) == set(held.type_urls)
        pools = server.in_force("picker")
        assert pools is not None
        assert pools.serves(POOL_TYPE)


@pytest.mark.parametrize("variant", ["sotw", "delta"])
async def test_clusters_endpoints_and_limits_are_served(variant: str) -> None:
    """Endpoints follow their clusters, as for any Envoy."""
    async with rig() as (_, channel):
        client = Client(channel, variant)
        await client.ask(RUNTIME_TYPE, RUNTIME_NAME)
        assert (await client.read()).type_url == RUNTIME_TYPE
        await client.ask(CLUSTER_TYPE)
        assert (await client.read()).type_url == CLUSTER_TYPE
        await client.ask(ENDPOINT_TYPE, "llm/stable/http")
        response = await client.read()
        assert (response.type_url, len(response.resources)) == (ENDPOINT_TYPE, 1)


async def test_stages_keep_their_order() -> None:
    """A client holds the new replicas before pickers may use them, and loses the old ones last."""

    def ports(response: Any) -> set[int]:
        (one,) = response.resources
        made = endpoint_pb2.ClusterLoadAssignment.FromString(one.value)
        hosts = (each.endpoint for zone in made.endpoints for each in zone.lb_endpoints)
        return {host.address.socket_address.port_value for host in hosts}

    async with rig() as (server, channel):
        client = Client(channel)
        await client.ask(CLUSTER_TYPE)
        await client.read()
        await client.ask(ENDPOINT_TYPE, "llm/canary/http")
        assert ports(await client.read()) == {8030}
        publication = server.publish(plan(View(OLD), View(NEW)))
        assert ports(await client.read()) == {8030, 8040}
        assert ports(await client.read()) == {8040}
        assert (await publication.wait(WAIT_S)).state == "done"


async def test_a_change_of_what_is_left_out_is_sent_to_no_client() -> None:
    """Nor does its publication wait for any answer but earlier ones."""
    async with rig() as (server, channel):
        client = Client(channel)
        await client.ask(CLUSTER_TYPE)
        await client.read()
        moved = fleet(listener={"address": "127.0.0.1:10443"})
        outcome = await server.publish(plan(View(OLD), View(moved))).wait(WAIT_S)
        assert (outcome.state, outcome.channels) == ("done", ())


@pytest.mark.parametrize("variant", ["sotw", "delta"])
@pytest.mark.parametrize("type_url", FRONT)
async def test_an_envoy_that_asks_for_more_is_told_once(variant: str, type_url: str) -> None:
    """Its stream ends with one sentence; the next one is served, without an answer to that."""
    async with rig() as (server, channel):
        first = Client(channel, variant)
        await first.ask(type_url, *(() if type_url == LISTENER_TYPE else ("tidegate",)))
        error = await first.end()
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "is not served: this control server serves clusters only" in (error.details() or "")
        again = Client(channel, variant)
        await again.ask(type_url, *(() if type_url == LISTENER_TYPE else ("tidegate",)))
        await again.ask(CLUSTER_TYPE)
        assert (await again.read()).type_url == CLUSTER_TYPE
        (found,) = server.refusals.newest()
        assert (found.node, found.reason, found.count) == ("gw-1", error.details(), 2)


async def test_each_node_is_told() -> None:
    """Another Envoy's operator reads another log."""
    async with rig() as (server, channel):
        for node in ("gw-1", "gw-2"):
            client = Client(channel, node=node)
            await client.ask(LISTENER_TYPE)
            assert (await client.end()).code() == grpc.StatusCode.INVALID_ARGUMENT
        assert {each.node for each in server.refusals.newest()} == {"gw-1", "gw-2"}


async def test_the_nodes_that_were_told_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound no stream ends: a forgotten node would be cut again and again."""
    monkeypatch.setattr(module, "MAX_TOLD", 1)
    async with rig() as (server, channel):
        first = Client(channel, node="gw-1")
        await first.ask(LISTENER_TYPE)
        await first.end()
        second = Client(channel, node="gw-2")
        await second.ask(LISTENER_TYPE)
        await second.ask(CLUSTER_TYPE)
        assert (await second.read()).type_url == CLUSTER_TYPE
        assert len(server.refusals.newest()) == 2


async def test_a_picker_is_never_cut_off() -> None:
    """What is left out is left out for Envoys."""
    async with rig() as (_, channel):
        picker = Client(channel, node="picker-1", cluster=PICKER_NODE_CLUSTER)
        await picker.ask(LISTENER_TYPE)
        await picker.ask(POOL_TYPE)
        assert (await picker.read()).type_url == POOL_TYPE
