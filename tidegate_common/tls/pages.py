"""HTTP pages of a service: over TLS for roles, and those on health on a port of its own.

Rules:

1. Over TLS a connection carries one request, so none outlives a certificate.
2. A page that is not listed in ``PAGES`` is for no role.
3. Bytes that are no HTTP get 400 and are not logged: anybody who reaches a port could fill the log.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from tidegate_common.tls.contexts import peer_of
from tidegate_common.tls.roles import EVERY, READERS, MethodRoles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiohttp.typedefs import Middleware

    from tidegate_common.tls.rpc import OnRefused
    from tidegate_common.tls.settings import Secured

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEALTH_PATH: Final = "/healthz"
LEADS_PATH: Final = "/leads"
"""Of a control server: 200 where it leads, otherwise 503."""
SAFE_TO_STOP_PATH: Final = "/safe-to-stop"
PAGES: Final = MethodRoles(
    {
        "/metrics": READERS,
        "/debug/state": READERS,
        "/debug/explain": READERS,
        SAFE_TO_STOP_PATH: READERS | {"reporter"},
        HEALTH_PATH: EVERY,
        LEADS_PATH: EVERY,
    }
)
"""Roles that may read each page."""


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether a record is of a fault of our own, and not of a client's bytes."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_log: Final = logging.getLogger("tidegate.pages")
_log.addFilter(_is_ours)


@contextlib.asynccontextmanager
async def serve_pages(
    app: web.Application,
    address: str,
    secured: Secured | None,
    on_refused: OnRefused,
    health_port: int | None = None,
) -> AsyncIterator[str]:
    """Serve an application and yield its bound address.

    Args:
        app: The pages; those at ``/healthz`` and ``/leads`` may be served alone, too.
        address: ``ip:port``.
        secured: Identity and roles; ``None`` = no TLS.
        on_refused: Called with address, names and reason of each refusal.
        health_port: Port for these alone, without TLS, on the same address.

    Raises:
        OSError: An address is in use or not local.
    """
    host, _, port = address.rpartition(":")
    bare = host.strip("[]")
    async with contextlib.AsyncExitStack() as stack:
        if health_port is not None:
            await _serve(_health_of(app), bare, health_port, stack)
        if secured is not None:
            app.middlewares.append(_guard(secured, on_refused))
        runner = await _serve(app, bare, int(port), stack, secured)
        yield f"{host}:{runner.addresses[0][1]}"


async def _serve(
    app: web.Application,
    host: str,
    port: int,
    stack: contextlib.AsyncExitStack,
    secured: Secured | None = None,
) -> web.AppRunner:
    context = None if secured is None else secured.context(["http/1.1"])
    runner = web.AppRunner(app, access_log=None, logger=_log)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, host, port, ssl_context=context).start()
    return runner


def _health_of(app: web.Application) -> web.Application:
    """Return an application with the pages ``/healthz`` and ``/leads`` of another."""
    alone = web.Application(client_max_size=1024)
    for each in app.router.routes():
        path = "" if each.resource is None else each.resource.canonical
        if each.method == "GET" and path in {HEALTH_PATH, LEADS_PATH}:
            alone.router.add_get(path, each.handler)
    return alone


def _guard(secured: Secured, on_refused: OnRefused) -> Middleware:
    policy = secured.policy(PAGES)

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.transport is None:
            raise web.HTTPForbidden(text="the connection is gone\n")
        peer = peer_of(request.transport)
        path = request.path if request.path in PAGES.methods else "another page"
        reason = policy.refusal(path, peer)
        answer: web.StreamResponse
        if reason is None:
            answer = await handler(request)
        else:
            on_refused(str(request.remote), peer, reason)
            answer = web.Response(status=web.HTTPForbidden.status_code, text=f"{reason}\n")
        answer.force_close()
        return answer

    return checked
