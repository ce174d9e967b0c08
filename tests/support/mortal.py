"""A test replica that dies: of a certain body, or because a test kills it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiohttp import web

from support.replicas import Replica
from support.sites import end
from tidegate.stack.processes.ports import HeldPorts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEADLY = "the killing prompt"


@dataclass
class MortalReplica(Replica):
    """A replica that loses all connections and its port when it dies, and is back later."""

    down_s: float = 3.0
    """Time until it is back, seconds."""
    deaths: int = 0
    runner: web.AppRunner | None = None
    site: web.TCPSite | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """It serves no longer: one that is down does not come back."""

    @asynccontextmanager
    async def serve(self, tls: object = None) -> AsyncIterator[MortalReplica]:
        """Serve on a port that no other process gets, also while this replica is dead."""
        assert tls is None
        app = web.Application()
        app.add_routes(
            [
                web.get("/{path:.*}", self._ready),
                web.post("/v2/repository/index", self._index),
                web.post("/{path:.*}", self._infer_or_die),
            ]
        )
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self.runner.setup()
        ports = HeldPorts()
        self.address = ports.address()
        try:
            self.site = await self._listening(self.runner)
            yield self
        finally:
            # Not cancelled: a port that opens at that moment would belong to nothing.
            self.over.set()
            await asyncio.gather(*self.tasks)
            await end(self.runner)
            ports.close()

    async def _listening(self, runner: web.AppRunner) -> web.TCPSite:
        """Return a site that listens at the address."""
        host, _, port = self.address.rpartition(":")
        site = web.TCPSite(runner, host, int(port), reuse_address=True)
        await site.start()
        return site

    async def _infer_or_die(self, request: web.Request) -> web.StreamResponse:
        if DEADLY.encode() in await request.read():
            self.asked.append(dict(request.headers))
            await asyncio.sleep(0.05)
            self.die()
        return await self._infer(request)

    def die(self) -> None:
        """Lose all connections and the port, as a process that is killed does."""
        task = asyncio.get_running_loop().create_task(self._die())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _die(self) -> None:
        if self.site is None or self.runner is None:
            return
        self.deaths += 1
        site, self.site = self.site, None
        await site.stop()
        for connection in list(self.runner.server.connections if self.runner.server else ()):
            if connection.transport is not None:
                connection.transport.abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.down_s):
                await self.over.wait()
        if self.over.is_set():
            return
        self.site = await self._listening(self.runner)
