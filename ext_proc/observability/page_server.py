"""Serves the picker's metrics and debug pages."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ext_proc.settings import AddressError
from tidegate_common.tls.pages import serve_pages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

    from tidegate_common.tls.rpc import OnRefused
    from tidegate_common.tls.settings import Secured


@contextlib.asynccontextmanager
async def serve_page(
    app: web.Application,
    address: str,
    secured: Secured | None = None,
    on_refused: OnRefused = lambda *_: None,
    health_port: int | None = None,
) -> AsyncIterator[str]:
    """Serve an HTTP application and yield its bound address.

    Args:
        app: The pages.
        address: ``ip:port``.
        secured: Identity and roles; ``None`` = no TLS.
        on_refused: Called with address, names and reason of each refusal.
        health_port: Port for ``/healthz`` alone, without TLS.

    Raises:
        AddressError: The address is in use or not local.
    """
    async with contextlib.AsyncExitStack() as stack:
        served = serve_pages(app, address, secured, on_refused, health_port)
        try:
            bound = await stack.enter_async_context(served)
        except OSError as error:
            raise AddressError(
                f"cannot listen on {address}: {error.strerror or error};"
                " choose another with --metrics"
                + (" or --health-port" if health_port is not None else "")
            ) from error
        yield bound
