"""A replica that answers every path with 200, over HTTP/1.1 and gRPC, and remembers what it saw."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
from aiohttp import web

from support.sites import end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping


HEALTH = "/health"
"""Path of health checks, which are not remembered."""
LOOKS = ("/v2/repository/index", "/v1/models")
"""Paths at which a picker asks for its models; what comes through Envoy has a request id."""


@dataclass
class StandIn:
    """Addresses of the stand-in, and the requests that reached it."""

    http: str = ""
    """``ip:port`` of its HTTP port."""
    grpc: str = ""
    """``ip:port`` of its gRPC port."""
    seen: list[tuple[str, str]] = field(default_factory=list)
    """(method, path) of each request that is no health check."""
    headers: list[Mapping[str, str]] = field(default_factory=list)
    """Headers of the same requests."""
    hold_s: float = 0.0
    """Time between a request and its answer over HTTP, seconds."""
    gate: asyncio.Event | None = None
    """Requests over HTTP that come while it is given are answered once it is set."""
    answer_bytes: int = 0
    """Length of padding in each answer over HTTP, bytes."""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[StandIn]:
        """Serve on free ports."""
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.http = f"127.0.0.1:{runner.addresses[0][1]}"
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Everything(self),))
        self.grpc = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            yield self
        finally:
            await server.stop(0)
            await end(runner)

    def note(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Remember a request."""
        self.seen.append((method, path))
        self.headers.append(headers)

    async def _answer(self, request: web.Request) -> web.Response:
        asked = request.path in LOOKS or request.path.endswith("/ready")
        look = asked and "x-request-id" not in request.headers
        if request.path != HEALTH and not look:
            self.note(request.method, request.raw_path, dict(request.headers))
            gate = self.gate
            await request.read()
            await asyncio.sleep(self.hold_s)
            if gate is not None:
                await gate.wait()
        padding = {"padding": " " * self.answer_bytes} if self.answer_bytes else {}
        return web.json_response({"reached": request.raw_path, **padding})


class _Everything(grpc.GenericRpcHandler):
    """Answers every method; a stream's answer begins with its second message."""

    def __init__(self, stand_in: StandIn) -> None:
        self._stand_in = stand_in

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        async def answer(
            requests: AsyncIterator[bytes], _: grpc.aio.ServicerContext
        ) -> AsyncIterator[bytes]:
            self._stand_in.note("POST", details.method, dict(details.invocation_metadata))
            count = 0
            async for _ in requests:
                count += 1
                if count > 1:
                    yield b""
            if count <= 1:
                yield b""

        return grpc.stream_stream_rpc_method_handler(answer)
