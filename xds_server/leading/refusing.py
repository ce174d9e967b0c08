"""The ports of a control server that follows: each call is told who leads.

ADS clients get UNAVAILABLE and health NOT_SERVING, so that they go to another server. Operators get
FAILED_PRECONDITION and the leader's admin address in the trailing metadata ``tidegate-leader``, and
over HTTP 503.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import grpc
from aiohttp import web
from grpc_health.v1 import health_pb2_grpc
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tidegate_api.names import LEADER_METADATA
from tidegate_common.health import HealthService
from tidegate_common.tls.denied import DeniedPeers
from tidegate_common.tls.pages import HEALTH_PATH, LEADS_PATH, serve_pages
from tidegate_common.tls.rpc import add_port
from tidegate_common.unix import UnixListener, is_unix, path_of
from xds_server.admin.access.relay import UserRelay
from xds_server.admin.web.app import failed, served
from xds_server.protocol.wire import ADS_SERVICE
from xds_server.server.port import SERVER_OPTIONS

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from tidegate_common.tls.settings import Secured
    from xds_server.settings import ControlSettings


class Leader:
    """Who leads, as its peers are told."""

    def __init__(self) -> None:
        self.name = ""
        """Empty = not known."""
        self.admin = ""
        """Its admin address; empty = none that others can reach."""
        self.fault = ""
        """Why the store cannot be followed; empty if it can."""

    @property
    def said(self) -> str:
        """A sentence."""
        if not self.name:
            return f"no control server leads: {self.fault or 'a lease has just ended'}; try again"
        return (
            f"this control server follows; {self.name} leads ({self.admin or 'no admin address'})"
        )


class RefusingPorts:
    """Serves the ports; an async context manager.

    Args:
        settings: Start options.
        secured: Identity and roles; ``None`` = no TLS.
        group: Id of the group that may open Unix sockets; ``None`` = the owner alone.
        leader: Who leads.
        stack: Where what must be closed is pushed.
    """

    def __init__(
        self,
        settings: ControlSettings,
        secured: Secured | None,
        group: int | None,
        leader: Leader,
        stack: AsyncExitStack,
    ) -> None:
        self._settings, self._secured, self._group = settings, secured, group
        self._leader, self._stack = leader, stack

    async def __aenter__(self) -> Self:
        settings, secured = self._settings, self._secured
        await self._stack.enter_async_context(
            serve_pages(
                _pages(), settings.metrics, secured, DeniedPeers().note, settings.health_port
            )
        )
        health = HealthService()
        for service in ("", ADS_SERVICE):
            health.set(service, serving=False)
        ads = grpc.aio.server(options=SERVER_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(health, ads)
        unavailable = _Refusal(self._leader, grpc.StatusCode.UNAVAILABLE)
        await self._serve(ads, settings.ads, unavailable)
        for address in settings.admin.split(","):
            refused = _Refusal(self._leader, grpc.StatusCode.FAILED_PRECONDITION)
            await self._serve(grpc.aio.server(options=SERVER_OPTIONS), address, refused)
        for address in filter(None, settings.admin_http.split(",")):
            page = served(_refusing(self._leader), address, secured, self._group)
            await self._stack.enter_async_context(page)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _serve(self, server: Any, address: str, refusal: _Refusal) -> None:
        server.add_generic_rpc_handlers((refusal,))
        self._stack.push_async_callback(server.stop, 0)
        if not is_unix(address):
            try:
                add_port(server, address, self._secured)
            except RuntimeError as error:
                raise OSError(f"cannot listen on {address}: {error}") from error
            await server.start()
            return
        relay, listener = UserRelay(), UnixListener(path_of(address), self._group)
        self._stack.callback(listener.close)
        self._stack.push_async_callback(relay.stop)
        server.add_insecure_port(relay.inner_address)
        await server.start()
        await relay.serve(listener)


class _Refusal(grpc.GenericRpcHandler):
    """Ends each call of any method."""

    def __init__(self, leader: Leader, code: grpc.StatusCode) -> None:
        self._leader = leader
        self._code = code

    def service(self, _: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a call."""

        async def refuse(_: Any, context: Any) -> None:
            leader = self._leader
            named = ((LEADER_METADATA, leader.admin),) if leader.admin else ()
            await context.abort(self._code, leader.said, named)

        return grpc.stream_stream_rpc_method_handler(refuse)


def _refusing(leader: Leader) -> web.Application:
    """Return the admin API over HTTP: each call is told who leads."""

    async def refuse(_: web.Request) -> web.Response:
        return failed(grpc.StatusCode.UNAVAILABLE, leader.said)

    app = web.Application(client_max_size=1024)
    app.router.add_route("*", "/{call:.*}", refuse)
    return app


def _pages() -> web.Application:
    """Return the pages: it is alive, and measures nothing."""

    async def metrics(_: web.Request) -> web.Response:
        nothing = generate_latest(CollectorRegistry())
        return web.Response(body=nothing, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def leads(_: web.Request) -> web.Response:
        return web.Response(text="it follows\n", status=503)

    app = web.Application(client_max_size=1024)
    pages = (("/metrics", metrics), (HEALTH_PATH, healthz), (LEADS_PATH, leads))
    app.add_routes([web.get(*each) for each in pages])
    return app
