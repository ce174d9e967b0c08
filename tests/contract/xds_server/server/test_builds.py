"""Envoys of several builds on one server."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from prometheus_client import CollectorRegistry

from support.fleets import fleet
from tidegate_api.names import LISTENER_TYPE
from xds_server.builds.features import lacking
from xds_server.observability import XdsMetrics
from xds_server.protocol.publication import Stage
from xds_server.protocol.snapshot import Snapshot
from xds_server.server.service import AdsServer
from xds_server.snapshots.build import front_resources

OLD, NEW = (1, 36, 4), (1, 40, 0)


@pytest.mark.parametrize("variant", ["sotw", "delta"])
async def test_each_envoy_gets_what_its_build_knows(variant: str) -> None:
    """By the version that it reports; status shows what is lost, and both end as synced."""
    whole = Snapshot.of(front_resources(fleet()))
    server = AdsServer(XdsMetrics(CollectorRegistry()))
    address = await server.start("127.0.0.1:0")
    sotw = variant == "sotw"
    make = discovery_pb2.DiscoveryRequest if sotw else discovery_pb2.DeltaDiscoveryRequest
    versions = {}
    try:
        async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(60):
            publication = server.publish([Stage("add", "envoy", whole)])
            for name, build in (("old", OLD), ("new", NEW)):
                stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
                call = stub.StreamAggregatedResources() if sotw else stub.DeltaAggregatedResources()
                request = make(type_url=LISTENER_TYPE)
                request.node.id, request.node.user_agent_name = name, "envoy"
                version = request.node.user_agent_build_version.version
                version.major_number, version.minor_number, version.patch = build
                await call.write(request)
                answer = await call.read()
                (found,) = answer.resources
                body = found.value if sotw else found.resource.value
                versions[name] = (b"tidegate.reads" in body, body)
                nonce = answer.nonce
                await call.write(make(type_url=LISTENER_TYPE, response_nonce=nonce))
                versions[f"call-{name}"] = call
            assert versions["old"][0] is False
            assert versions["new"][0] is True
            await publication.wait(60)
            while any(t.state != "SYNCED" for c in server.clients() for t in c.types):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            new, old = server.clients()
            assert (new.node, new.build, new.lost) == ("new", "1.40.0", ())
            assert (old.node, old.build) == ("old", "1.36.4")
            assert old.lost == tuple(each.lost for each in lacking(OLD))
    finally:
        await server.stop(grace=0)
