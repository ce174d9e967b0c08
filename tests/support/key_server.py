"""An identity provider's server of keys (JWKS), over TLS."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from support.sites import end
from support.tokens import key_set

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

PATH = "/keys.json"


@dataclass
class KeyServer:
    """What it answers; may be changed while it runs.

    Args:
        address: ``ip:port`` where it listens.
        tls: Its context.
    """

    address: str
    tls: ssl.SSLContext
    keys: str = key_set()
    status: int = 200
    delay_s: float = 0.0
    """Time before an answer, seconds."""
    asked: int = 0
    """Number of requests."""

    @property
    def url(self) -> str:
        """Where the keys are."""
        return f"https://{self.address}{PATH}"

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[KeyServer]:
        """Serve until the end of the block; connections are cut then."""
        app = web.Application()
        app.router.add_get(PATH, self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        host, _, port = self.address.rpartition(":")
        await web.TCPSite(runner, host, int(port), ssl_context=self.tls).start()
        try:
            yield self
        finally:
            await end(runner)

    async def _answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        await asyncio.sleep(self.delay_s)
        return web.Response(status=self.status, text=self.keys, content_type="application/json")
