"""The admin API over gRPC: its ports, and each call behind the check of its caller.

Ports are Unix sockets, whose callers are known by their user, and TCP ports, with TLS if the server
has an identity. Who may call what: ``xds_server.admin.access``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc
from envoy.service.status.v3 import csds_pb2_grpc

from tidegate_api.admin.v1 import admin_pb2_grpc
from tidegate_common.readable import ReadableServer
from tidegate_common.tls.rpc import add_port, age_options, peer_of
from tidegate_common.unix import SCHEME, UnixListener, is_unix, path_of
from xds_server.admin.access.caller import ACCESS, CallEnded, CallOrigin
from xds_server.admin.access.relay import ABSTRACT, UserRelay
from xds_server.fleet.document import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegate_common.tls.settings import Secured
    from xds_server.admin.access.calls import Calls
    from xds_server.admin.csds import ClientStatusService
    from xds_server.admin.service import AdminService

MAX_MESSAGE_BYTES = MAX_BYTES + 64 * 1024
"""Largest request: the largest fleet file and its options."""

MAX_ANSWER_BYTES = 64 * 2**20
"""Largest answer. Answers may be larger than the file, because they contain all defaults."""

MAX_CONCURRENT_CALLS = 256

AGE_GRACE_S = 86_400.0
"""Seconds in which calls of a connection that has reached its maximum age may end: the longest
wait of a change."""

_HEADER: Final = "authorization"


class AdminServer:
    """Serves ``AdminService`` and ``ClientStatusService``.

    Args:
        service: Serves operators.
        status: Serves the clients' status to tools (CSDS).
        calls: Runs each call.
        secured: Identity of TCP ports; ``None`` = no TLS.
        group: Id of the group that may open Unix sockets; ``None`` = the owner alone.
    """

    def __init__(
        self,
        service: AdminService,
        status: ClientStatusService,
        calls: Calls,
        secured: Secured | None = None,
        group: int | None = None,
    ) -> None:
        self._secured = secured
        self._calls = calls
        self._group = group
        self._relay = UserRelay()
        self._listeners: list[UnixListener] = []
        self._server = grpc.aio.server(
            options=(
                *(() if secured is None else age_options(secured.max_age_s, AGE_GRACE_S)),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_ANSWER_BYTES),
                ("grpc.so_reuseport", 0),  # a port in use must be an error
            ),
            maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS,
        )
        behind: Any = ReadableServer(_Checked(self._server, self))
        admin_pb2_grpc.add_AdminServicer_to_server(service, behind)
        csds_pb2_grpc.add_ClientStatusDiscoveryServiceServicer_to_server(status, behind)

    def bind(self, address: str) -> str:
        """Bind an address and return it as it is bound.

        Args:
            address: ``ip:port`` (port 0 = a free port), ``unix:PATH`` or ``local``.

        Raises:
            OSError: The address cannot be bound.
        """
        if is_unix(address):
            return self._bind_socket(address)
        try:
            port = add_port(self._server, address, self._secured)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        return f"{address.rpartition(':')[0]}:{port}"

    def _bind_socket(self, address: str) -> str:
        path = path_of(address)
        try:
            listener = UnixListener(path, self._group)
            if not self._listeners:
                self._server.add_insecure_port(self._relay.inner_address)
        except (OSError, RuntimeError) as error:
            raise OSError(
                f"cannot listen on {path}: {error}; --admin names another address"
            ) from error
        self._listeners.append(listener)
        return f"{SCHEME}{path}"

    async def start(self) -> None:
        """Start to serve."""
        await self._server.start()
        for listener in self._listeners:
            await self._relay.serve(listener)

    async def stop(self, grace_s: float) -> None:
        """Stop; running calls may end within ``grace_s`` seconds."""
        await self._server.stop(grace_s)
        await self._relay.stop()
        for listener in self._listeners:
            listener.close()

    def guard(self, path: str, handler: Any) -> Any:
        """Return a handler whose calls run behind the check of their caller."""
        if handler.stream_stream is not None:
            streamed = handler.stream_stream

            async def both(requests: Any, context: Any) -> Any:
                try:
                    async for each in self._calls.stream(
                        path, requests, self._seen(context), streamed
                    ):
                        yield each
                except CallEnded as ended:
                    await context.abort(ended.code, ended.text)

            return handler._replace(stream_stream=both)
        single = handler.unary_unary

        async def one(request: Any, context: Any) -> Any:
            try:
                return await self._calls.run(path, request, self._seen(context), single)
            except CallEnded as ended:
                await context.abort(ended.code, ended.text)

        return handler._replace(unary_unary=one)

    def _seen(self, context: Any) -> CallOrigin:
        address = str(context.peer())
        known = self._relay.user_of(address)
        if known is None and address.startswith((SCHEME, ABSTRACT)):
            raise CallEnded(
                grpc.StatusCode.PERMISSION_DENIED, "this connection has no user; use the socket"
            )
        given = context.invocation_metadata() or ()
        authorization = next((value for key, value in given if key == _HEADER), None)
        return CallOrigin(
            address if known is None else f"uid {known.user.uid} pid {known.user.pid}",
            address.rpartition(":")[0],
            peer_of(context),
            encrypted=known is None and self._secured is not None,
            user=None if known is None else known.user,
            user_name="" if known is None else known.name,
            authorization=authorization if isinstance(authorization, str | None) else "",
        )


class _Checked:
    """Takes handlers as a server does, and adds them behind the check."""

    def __init__(self, server: Any, owner: AdminServer) -> None:
        self._server = server
        self._owner = owner

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add handlers to serve."""
        self._server.add_generic_rpc_handlers(
            tuple(_CheckedHandler(each, self._owner) for each in handlers)
        )

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Do nothing: generated code calls this besides ``add_generic_rpc_handlers``."""


class _CheckedHandler(grpc.GenericRpcHandler):
    """A handler whose methods check their callers."""

    def __init__(self, inner: grpc.GenericRpcHandler, owner: AdminServer) -> None:
        self._inner = inner
        self._owner = owner
        self._known: dict[str, Any] = {}

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a call; ``None`` = not of this service."""
        path = str(details.method)
        if path in self._known:
            return self._known[path]
        found = self._inner.service(details)
        if found is None or path not in ACCESS.methods:
            return None
        self._known[path] = self._owner.guard(path, found)
        return self._known[path]


__all__ = ["ACCESS", "MAX_ANSWER_BYTES", "MAX_MESSAGE_BYTES", "AdminServer"]
