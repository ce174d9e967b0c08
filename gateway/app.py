"""A complete gateway: wires the parts, runs them and stops them.

A part that ends by itself is a crash of the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from ext_proc.control.fleet_client import CHANNEL_OPTIONS, FleetClient, PoolWatch
from gateway.asking import Asker
from gateway.changes import ModelDrains, ReplicaChanges
from gateway.grpc_answers import GrpcAnswers
from gateway.http_answers import HttpAnswers
from gateway.metrics import GatewayMetrics
from gateway.ports import CannotListenError, GatewayCalls, serve_grpc, serve_http
from gateway.questions import Questions
from gateway.streams.watches import StreamAnswers
from tidegate_api.names import GATEWAY_NODE_CLUSTER
from tidegate_common import logs
from tidegate_common.tls.channel import open_channel
from tidegate_common.tls.denied import DeniedPeers
from tidegate_common.tls.files import TlsError
from tidegate_common.tls.pages import serve_pages
from tidegate_common.tls.rpc import client_tls
from tidegate_common.tls.settings import secured as secured_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.settings import GatewaySettings

EXIT_USAGE = 2

_log = structlog.stdlib.get_logger("gateway")


async def run_gateway(settings: GatewaySettings) -> int:
    """Run a gateway until SIGTERM or SIGINT.

    Returns:
        The exit code: 0 after a requested stop, 1 after a crash of a part, 2 where an address
        cannot be bound or certificates cannot be used.
    """
    logs.configure(settings.log_format, settings.log_level)
    try:
        async with contextlib.AsyncExitStack() as stack:
            return await _run(settings, stack)
    except (CannotListenError, TlsError) as error:
        _log.error("cannot_start", reason=str(error))
        return EXIT_USAGE


async def _run(settings: GatewaySettings, stack: contextlib.AsyncExitStack) -> int:
    secured, refused = secured_by(settings), DeniedPeers()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    asker = await stack.enter_async_context(Asker())
    questions = Questions(asker, settings.ready_percent, time.monotonic)
    tls = client_tls(secured, settings.tls_server_name)
    channel = await stack.enter_async_context(open_channel(settings.xds, tls, CHANNEL_OPTIONS))
    calls = GatewayCalls(
        HttpAnswers(questions),
        GrpcAnswers(questions),
        ReplicaChanges(questions, ModelDrains(channel)),
        StreamAnswers(questions, settings.timeout),
        timeout_s=settings.timeout,
        change_timeout_s=settings.admin_timeout,
    )
    watch = PoolWatch(settings.id, questions.set_pools, GATEWAY_NODE_CLUSTER)
    metrics = GatewayMetrics(calls, questions, asker)
    fleet = FleetClient(channel, watch, rng=random.random, on_connected=metrics.connected.set)
    page = _page(metrics, lambda: watch.synced and not stop.is_set())
    try:
        at = await stack.enter_async_context(
            serve_pages(page, settings.metrics, secured, refused.note, settings.health_port)
        )
    except OSError as error:
        raise CannotListenError(
            f"cannot listen on {settings.metrics}: {error.strerror or error}; choose another with"
            " --metrics"
        ) from error
    parts = {asyncio.create_task(fleet.run(), name="fleet")}
    stack.callback(_cancel, parts)
    if secured is not None:
        parts.add(asyncio.create_task(secured.identity.follow(), name="certificate"))
    stopped = asyncio.create_task(stop.wait(), name="stop")
    known = asyncio.create_task(fleet.ready.wait(), name="pools")
    await asyncio.wait({*parts, stopped, known}, return_when=asyncio.FIRST_COMPLETED)
    known.cancel()
    bound = {"metrics": at}
    servers: list[contextlib.AsyncExitStack] = []
    if fleet.ready.is_set() and not stop.is_set():
        # Before the pools are known Envoy finds no gateway, which is the truth.
        for option, admin in (("http", False), ("admin", True)):
            served = serve_http(
                calls,
                getattr(settings, option),
                secured,
                refused.note,
                admin=admin,
                option=option,
                by_envoy=settings.admin_by_envoy,
                grace_s=settings.drain,
            )
            bound[option] = await _entered(served, servers, stack)
        for option, admin in (("grpc", False), ("admin_grpc", True)):
            served = serve_grpc(
                calls,
                getattr(settings, option),
                secured,
                refused.note,
                admin=admin,
                option=option.replace("_", "-"),
                by_envoy=settings.admin_by_envoy,
                grace_s=settings.drain,
            )
            bound[option] = await _entered(served, servers, stack)
        _log.info("gateway_started", id=settings.id, xds=settings.xds, **bound)
    done, _ = await asyncio.wait({*parts, stopped}, return_when=asyncio.FIRST_COMPLETED)
    crashed = [part for part in parts if part in done]
    for part in crashed:
        _log.error("part_ended", part=part.get_name(), reason=repr(part.exception()))
    # All at one time: each refuses new calls at once, and has the whole time for its open ones.
    await asyncio.gather(*(each.aclose() for each in servers))
    _log.info("gateway_stopped")
    return 1 if crashed else 0


async def _entered(
    served: contextlib.AbstractAsyncContextManager[str],
    servers: list[contextlib.AsyncExitStack],
    stack: contextlib.AsyncExitStack,
) -> str:
    """Start a server that can be stopped by itself; return its address."""
    own = await stack.enter_async_context(contextlib.AsyncExitStack())
    address = await own.enter_async_context(served)
    servers.append(own)
    return address


def _cancel(parts: set[asyncio.Task[Any]]) -> None:
    for part in parts:
        part.cancel()


def _page(metrics: GatewayMetrics, ready: Callable[[], bool]) -> web.Application:
    async def read(_: web.Request) -> web.Response:
        return web.Response(body=metrics.page(), headers={"content-type": metrics.content_type})

    async def health(_: web.Request) -> web.Response:
        good = ready()
        return web.Response(status=200 if good else 503, text="ok\n" if good else "no pools yet\n")

    app = web.Application(client_max_size=1024)
    app.router.add_get("/metrics", read)
    app.router.add_get("/healthz", health)
    return app
