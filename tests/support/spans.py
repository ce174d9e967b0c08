"""A collector of spans."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web

from support.sites import end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Sink:
    """A collector of spans."""

    def __init__(self, address: str = "") -> None:
        self.address = address
        self.spans: list[dict[str, Any]] = []

    async def export(self, request: web.Request) -> web.Response:
        """Record the spans."""
        for resource in (await request.json())["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                self.spans += scope["spans"]
        return web.json_response({})


@asynccontextmanager
async def collecting() -> AsyncIterator[Sink]:
    """Run a collector at ``address``."""
    made, app = Sink(), web.Application()
    app.router.add_post("/v1/traces", made.export)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.address = f"127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await end(runner)
