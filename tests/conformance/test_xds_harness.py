r"""The public conformance suite for xDS servers, ii/xds-test-harness, against our ADS server.

It runs only where ``TIDEGATE_XDS_HARNESS`` is the folder of its built checkout (15 minutes)::

    git clone https://github.com/ii/xds-test-harness && cd xds-test-harness
    protoc -I. --go_out=. --go_opt=paths=source_relative --go-grpc_out=. \
      --go-grpc_opt=paths=source_relative api/adapter/adapter.proto
    go build -o xds-test-harness .

The suite sets the state of the server by the calls of ``adapter.proto``, with versions of its own
choice; ours are hashes of content, so the adapter makes snapshots with the suite's. Where the suite
adds a resource without another version of the set, which a hash never does, the adapter publishes
the old set under another version first. Its scenarios over streams per resource type do not apply:
such streams are refused (``server.unsupported``).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from prometheus_client import CollectorRegistry

from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE, LISTENER_TYPE, ROUTE_TYPE
from xds_server.observability import XdsMetrics
from xds_server.protocol.publication import Stage
from xds_server.protocol.snapshot import Resource, Snapshot, TypeSet
from xds_server.server.service import AdsServer

HARNESS = os.environ.get("TIDEGATE_XDS_HARNESS", "")
LIMIT_S = 1500.0
OTHER_CONNECTION_S = 0.3
"""The suite's client sends on another connection, and the suite does not wait until it has."""
MAKE = {
    CLUSTER_TYPE: lambda name: cluster_pb2.Cluster(name=name),
    ENDPOINT_TYPE: lambda name: endpoint_pb2.ClusterLoadAssignment(cluster_name=name),
    LISTENER_TYPE: lambda name: listener_pb2.Listener(name=name),
    ROUTE_TYPE: lambda name: route_pb2.RouteConfiguration(name=name),
}


def resource(type_url: str, name: str, version: str) -> Resource:
    """Return an almost empty resource with a version that is no hash."""
    return replace(
        Resource.of(type_url, name, MAKE[type_url](name).SerializeToString()), version=version
    )


class Adapter:
    """Sets the state of an ADS server as the suite says.

    Args:
        server: The server under test.
        protos: The compiled ``adapter.proto``.
    """

    def __init__(self, server: AdsServer, protos: Any) -> None:
        self._server = server
        self._protos = protos
        self._types: dict[str, dict[str, Resource]] = {}
        self._versions: dict[str, str] = {}

    async def SetState(self, request: Any, _: Any) -> Any:  # noqa: N802 - gRPC's name
        """Set all resources."""
        self._types.clear()
        for packed in request.resources:
            message = MAKE[packed.type_url]("")
            packed.Unpack(message)
            name = message.cluster_name if packed.type_url == ENDPOINT_TYPE else message.name
            made = resource(packed.type_url, name, request.version)
            self._types.setdefault(packed.type_url, {})[name] = made
            self._versions[packed.type_url] = request.version
        self._publish()
        return self._protos.SetStateResponse(success=True)

    async def ClearState(self, _request: Any, _: Any) -> Any:  # noqa: N802 - gRPC's name
        """Serve nothing."""
        self._types.clear()
        self._publish()
        return self._protos.clearStateResponse(response="cleared")

    async def UpdateResource(self, request: Any, _: Any) -> Any:  # noqa: N802 - gRPC's name
        """Give a resource another version, after what the suite's client sent before."""
        await asyncio.sleep(OTHER_CONNECTION_S)
        self._put(request)
        return self._protos.UpdateResourceResponse(success=True)

    async def AddResource(self, request: Any, _: Any) -> Any:  # noqa: N802 - gRPC's name
        """Add a resource."""
        self._put(request)
        return self._protos.AddResourceResponse(success=True)

    async def RemoveResource(self, request: Any, _: Any) -> Any:  # noqa: N802 - gRPC's name
        """Remove a resource."""
        del self._types[request.typeUrl][request.resourceName]
        self._versions[request.typeUrl] += "-"
        self._publish()
        return self._protos.RemoveResourceResponse(success=True)

    def _put(self, request: Any) -> None:
        if self._versions.get(request.typeUrl) == request.version:
            self._versions[request.typeUrl] += "-"
            self._publish()
        made = resource(request.typeUrl, request.resourceName, request.version)
        self._types.setdefault(request.typeUrl, {})[request.resourceName] = made
        self._versions[request.typeUrl] = request.version
        self._publish()

    def _publish(self) -> None:
        sets = {
            type_url: TypeSet(self._versions[type_url], MappingProxyType(dict(found)))
            for type_url, found in self._types.items()
        }
        self._server.publish([Stage("add", "envoy", Snapshot(sets, {}))])


@asynccontextmanager
async def target():
    """Start a server and its adapter; give their ports, as the suite dials this machine."""
    protos, services = grpc.protos_and_services("conformance/adapter.proto")
    ads = AdsServer(XdsMetrics(CollectorRegistry()))
    control = grpc.aio.server()
    services.add_AdapterServicer_to_server(Adapter(ads, protos), control)
    port = control.add_insecure_port("127.0.0.1:0")
    await control.start()
    try:
        yield (await ads.start("127.0.0.1:0")).rpartition(":")[2], str(port)
    finally:
        await control.stop(0)
        await ads.stop(0)


@pytest.mark.skipif(not HARNESS, reason="TIDEGATE_XDS_HARNESS names no built xds-test-harness")
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize("variant", ["sotw aggregated", "incremental aggregated"])
async def test_the_aggregated_scenarios_pass(variant: str, tmp_path, monkeypatch) -> None:
    """All of them, in both variants."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    shutil.copytree(Path(HARNESS) / "features", tmp_path / "features")
    async with target() as (served, adapter), asyncio.timeout(LIMIT_S):
        process = await asyncio.create_subprocess_exec(
            *(Path(HARNESS) / "xds-test-harness", "-V", variant, "-T", served, "-A", adapter),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    results = json.loads((tmp_path / "results.json").read_text())
    print(output.decode())  # noqa: T201 - the suite's own summary, shown with -s
    assert results["Total"] > 0, output.decode()
    assert results["Passed"] == results["Total"], output.decode()
