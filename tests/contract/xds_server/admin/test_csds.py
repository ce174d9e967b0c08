"""Client status discovery over a real channel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace

import grpc
import pytest
from envoy.admin.v3 import config_dump_shared_pb2
from envoy.service.status.v3 import csds_pb2, csds_pb2_grpc

from tidegate_api.names import CLUSTER_TYPE, ROUTE_TYPE
from xds_server.admin.csds import ClientStatusService
from xds_server.protocol.messages import TypeView


def client(node: str) -> SimpleNamespace:
    """Return a client that acknowledged the clusters and rejected the routes."""
    return SimpleNamespace(
        node=node,
        kind="envoy",
        protocol="delta",
        quarantine="refused 3 changes" if node == "b" else "",
        twins=2 if node == "b" else 1,
        types=(
            TypeView(CLUSTER_TYPE, "SYNCED", "v2", "v2", "", 0.0, 3),
            TypeView(ROUTE_TYPE, "NACKED", "v2", "v1", "no such cluster", 1.0, 1),
        ),
    )


@pytest.fixture
async def stub() -> AsyncIterator[csds_pb2_grpc.ClientStatusDiscoveryServiceStub]:
    """Return a client of a server that knows two Envoys."""
    observed = SimpleNamespace(clients=lambda: (client("a"), client("b")))
    server = grpc.aio.server()
    csds_pb2_grpc.add_ClientStatusDiscoveryServiceServicer_to_server(
        ClientStatusService(observed), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield csds_pb2_grpc.ClientStatusDiscoveryServiceStub(channel)
    await server.stop(0)


async def test_every_clients_state_is_reported(stub) -> None:
    """X61: the acknowledged version, and the error message of a NACK."""
    answer = await stub.FetchClientStatus(csds_pb2.ClientStatusRequest())
    assert [config.node.id for config in answer.config] == ["a", "b"]
    clusters, routes = answer.config[0].generic_xds_configs
    assert (clusters.type_url, clusters.version_info) == (CLUSTER_TYPE, "v2")
    assert clusters.config_status == csds_pb2.SYNCED
    assert clusters.client_status == config_dump_shared_pb2.ACKED
    assert (routes.config_status, routes.version_info) == (csds_pb2.ERROR, "v1")
    assert routes.client_status == config_dump_shared_pb2.NACKED
    assert (routes.error_state.details, routes.error_state.version_info) == (
        "no such cluster",
        "v2",
    )


async def test_one_client_can_be_requested_on_a_stream(stub) -> None:
    """By its exact node id."""
    request = csds_pb2.ClientStatusRequest()
    request.node_matchers.add().node_id.exact = "b"
    call = stub.StreamClientStatus()
    for _ in range(2):
        await call.write(request)
        answer = await call.read()
        assert [config.node.id for config in answer.config] == ["b"]
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_quarantine_and_shared_ids_are_in_the_metadata(stub) -> None:
    """Tools that know nothing of Tidegate show the node's metadata."""
    answer = await stub.FetchClientStatus(csds_pb2.ClientStatusRequest())
    plain, noted = (dict(config.node.metadata) for config in answer.config)
    assert set(plain) == {"kind", "protocol"}
    assert noted["quarantine"] == "refused 3 changes"
    assert noted["shared_node_id"] == "2 clients"


async def test_other_matchers_are_rejected(stub) -> None:
    """The error names the supported matcher."""
    request = csds_pb2.ClientStatusRequest()
    request.node_matchers.add().node_id.prefix = "b"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.FetchClientStatus(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "node_matchers: only node_id.exact is supported"
