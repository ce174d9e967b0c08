"""Client status discovery service (CSDS): the configuration status of every client.

It serves the data of ``GetStatus`` in the format of ``envoy.service.status.v3``, for standard
tools. There is one entry per client and type: a control plane knows what it sent and what was
acknowledged, not the state of each resource inside the client. ``ERROR`` is a NACK
(``client_status`` NACKED, with the client's error message).

Source: ``envoy/service/status/v3/csds.proto``, ``envoy/admin/v3/config_dump_shared.proto``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc
from envoy.admin.v3 import config_dump_shared_pb2
from envoy.service.status.v3 import csds_pb2, csds_pb2_grpc

if TYPE_CHECKING:
    from xds_server.control.ads import ClientDirectory
    from xds_server.protocol.messages import ClientView, TypeView

_STATUS: Final = {
    "SYNCED": (csds_pb2.SYNCED, config_dump_shared_pb2.ACKED),
    "STALE": (csds_pb2.STALE, config_dump_shared_pb2.REQUESTED),
    "NACKED": (csds_pb2.ERROR, config_dump_shared_pb2.NACKED),
    "NOT_SENT": (csds_pb2.NOT_SENT, config_dump_shared_pb2.REQUESTED),
}


class ClientStatusService(csds_pb2_grpc.ClientStatusDiscoveryServiceServicer):  # type: ignore[misc] # the library has no types
    """``envoy.service.status.v3.ClientStatusDiscoveryService``.

    Args:
        observed: State of the clients.
    """

    def __init__(self, observed: ClientDirectory) -> None:
        self._observed = observed

    async def FetchClientStatus(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        """Return the clients that the request's matchers name; without matchers all clients."""
        return await self._answer(request, context)

    async def StreamClientStatus(self, requests: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        """Answer each request of a stream."""
        async for request in requests:
            yield await self._answer(request, context)

    async def _answer(self, request: Any, context: Any) -> Any:
        wanted = set()
        for matcher in request.node_matchers:
            if matcher.node_metadatas or matcher.node_id.WhichOneof("match_pattern") != "exact":
                text = "node_matchers: only node_id.exact is supported"
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
            wanted.add(matcher.node_id.exact)
        clients = self._observed.clients()
        return csds_pb2.ClientStatusResponse(
            config=[_config(one) for one in clients if not wanted or one.node in wanted]
        )


def _config(client: ClientView) -> Any:
    config = csds_pb2.ClientConfig()
    config.node.id = client.node
    found: dict[str, str] = {"kind": client.kind, "protocol": client.protocol}
    if client.quarantine:
        found["quarantine"] = client.quarantine
    if client.twins > 1:
        found["shared_node_id"] = f"{client.twins} clients"
    config.node.metadata.update(found)
    config.generic_xds_configs.extend(_type(view) for view in client.types)
    return config


def _type(view: TypeView) -> Any:
    config_status, client_status = _STATUS[view.state]
    found = csds_pb2.ClientConfig.GenericXdsConfig(
        type_url=view.type_url,
        version_info=view.version_acked,
        config_status=config_status,
        client_status=client_status,
    )
    if view.message:
        found.error_state.details = view.message
        found.error_state.version_info = view.version_sent
    return found
