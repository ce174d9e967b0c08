"""Replicas over HTTP and gRPC that take TLS, for tests of what asks them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from aiohttp import web

from support.sites import end

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable

    from support.certificates import Pair


@contextlib.asynccontextmanager
async def http_replica(app: web.Application, context: ssl.SSLContext | None) -> AsyncIterator[str]:
    """Serve an application, in the clear without a context; yield its address."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await end(runner)


@contextlib.asynccontextmanager
async def grpc_replica(
    method: str,
    answer: Callable[[bytes, object], Awaitable[bytes]],
    pair: Pair | None,
    clients: bytes | None = None,
) -> AsyncIterator[str]:
    """Serve one method, in the clear without a certificate; yield its address.

    Args:
        method: Its path, as ``/package.Service/Method``.
        answer: Returns the serialized answer to a serialized request.
        pair: The replica's certificate and key.
        clients: Certificates (PEM) that sign those of clients; ``None`` = none is asked for.
    """
    service, _, name = method[1:].partition("/")
    handlers = {name: grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    if pair is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        keys = [(pair.key.read_bytes(), pair.certificate.read_bytes())]
        asks = clients is not None
        credentials = grpc.ssl_server_credentials(keys, clients, require_client_auth=asks)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
