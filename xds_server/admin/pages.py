"""HTTP pages of the control server: ``/metrics``, ``/healthz``, ``/leads``, ``/safe-to-stop``.

``GET /safe-to-stop?endpoint=ID&timeout=SECONDS`` is for hooks that stop a replica, such as preStop
of Kubernetes. It answers 200 once the replica may be stopped, 503 with what still uses it at the
end of the timeout, 404 if no replica is meant, and 400 for other parameters. It drains nothing.
At most ``MAX_WAITS`` calls wait at a time; further ones are answered at once.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tidegate_common.tls.pages import HEALTH_PATH, LEADS_PATH, SAFE_TO_STOP_PATH
from xds_server.fleet.change import UnknownName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from xds_server.admin.stopping import Stop, Stopping

EVERY_S: Final = 0.25
"""Seconds between two looks of a call that waits."""
DEFAULT_TIMEOUT_S: Final = 25.0
"""Within the 30 s that Kubernetes gives a pod by default."""
MAX_TIMEOUT_S: Final = 3600.0
MAX_WAITS: Final = 256
MAX_NAME_CHARS: Final = 512


def pages(registry: CollectorRegistry, stopping: Stopping) -> web.Application:
    """Return the pages."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application(client_max_size=1024)
    app.add_routes(
        [
            web.get("/metrics", metrics),
            web.get(HEALTH_PATH, healthz),
            web.get(LEADS_PATH, healthz),
            web.get(SAFE_TO_STOP_PATH, SafeToStop(stopping).answer),
        ]
    )
    return app


class SafeToStop:
    """The page ``/safe-to-stop``; see the module.

    Args:
        stopping: Says whether replicas may be stopped.
        clock: Monotonic seconds.
        sleep: Waits for some seconds.
    """

    def __init__(
        self,
        stopping: Stopping,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._stopping = stopping
        self._clock = clock
        self._sleep = sleep
        self._waiting = 0

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a call once the replica may be stopped, or its time is over."""
        name, timeout_s = request.query.get("endpoint", ""), _timeout_s(request)
        if timeout_s is None or not 0 < len(name) <= MAX_NAME_CHARS:
            text = (
                "write /safe-to-stop?endpoint=ID&timeout=SECONDS, with an id, pool/id, address or"
                f" host, and at most {MAX_TIMEOUT_S:g} seconds\n"
            )
            return web.Response(status=400, text=text)
        try:
            ids = self._stopping.ids(name)
        except UnknownName as error:
            return web.Response(status=404, text=f"{error}\n")
        found = await self._wait(ids, timeout_s, request)
        if found.safe:
            return web.Response(text=f"safe to stop: {', '.join(sorted(ids))}\n")
        lines = "".join(f"{each}\n" for each in found.waits_for)
        return web.Response(status=503, text=f"not safe to stop:\n{lines}")

    async def _wait(self, ids: frozenset[str], timeout_s: float, request: web.Request) -> Stop:
        until = self._clock() + timeout_s
        found = self._stopping.state(ids)
        if self._waiting >= MAX_WAITS:
            return found
        self._waiting += 1
        try:
            while not found.safe and self._clock() < until and _listens(request):
                await self._sleep(min(EVERY_S, max(0.0, until - self._clock())))
                found = self._stopping.state(ids)
        finally:
            self._waiting -= 1
        return found


def _timeout_s(request: web.Request) -> float | None:
    """Return the timeout that a call asks for; ``None`` if it is no number of seconds."""
    try:
        found = float(request.query.get("timeout", DEFAULT_TIMEOUT_S))
    except ValueError:
        return None
    return found if math.isfinite(found) and 0 <= found <= MAX_TIMEOUT_S else None


def _listens(request: web.Request) -> bool:
    return request.transport is not None and not request.transport.is_closing()
