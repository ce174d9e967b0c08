"""Composition and life cycle of the control server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
import time
from typing import TYPE_CHECKING

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tidegate_common import logs
from xds_server.admin.csds import ClientStatusService
from xds_server.admin.service import AdminServer, AdminService
from xds_server.control.fleet_control import Control
from xds_server.control.health_broadcast import HealthBroadcaster
from xds_server.discovery.file import FileFault, FileWatch, read_text
from xds_server.fleet.load import FleetError, load_text
from xds_server.fleet.store import RevisionStore, StoreError
from xds_server.observability import XdsMetrics
from xds_server.server.service import AdsServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from xds_server.settings import ControlSettings

EXIT_OK = 0
EXIT_CANNOT_START = 2
GRACE_S = 2.0
"""Seconds that running calls may take to end when the server stops."""

SWITCH_S = 0.001
"""Seconds after which a worker thread hands the interpreter to the event loop. Fleets are validated
in worker threads, and each step of an answer waits this long for the interpreter."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_log = structlog.get_logger(__name__)


async def run(settings: ControlSettings, stop: asyncio.Event | None = None) -> int:
    """Run the control server until SIGINT or SIGTERM, or until ``stop`` is set.

    Args:
        settings: Start options.
        stop: Ends the run when set. If given, no signal handlers are installed.

    Returns:
        The exit code: 0, or 2 if the server could not start (with one error on stderr).
    """
    logs.configure(settings.log_format, settings.log_level)
    sys.setswitchinterval(SWITCH_S)
    try:
        async with _running(settings):
            if stop is None:
                await _signalled()
            else:
                await stop.wait()
    except (FileFault, FleetError, StoreError, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - the caller reads a start error on stderr
        return EXIT_CANNOT_START
    return EXIT_OK


async def _signalled() -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    try:
        await stopped.wait()
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def _running(settings: ControlSettings) -> AsyncIterator[None]:
    """Start all parts in the order of their dependencies, and stop them in reverse order.

    Raises:
        FileFault: The fleet file cannot be read.
        FleetError: The file is not a valid fleet.
        StoreError: The store cannot be used.
        OSError: An address cannot be bound.
    """
    text, source = await asyncio.to_thread(read_text, settings.fleet), str(settings.fleet)
    load_text(text, source)  # report an invalid file before anything is started
    async with contextlib.AsyncExitStack() as stack:
        store = await asyncio.to_thread(RevisionStore, settings.state)
        stack.callback(store.close)
        registry = CollectorRegistry()
        metrics = XdsMetrics(registry)
        ads = AdsServer(metrics)

        def in_force(revision: int) -> None:
            metrics.set_revision(revision)
            broadcaster.notify()

        control = Control(store, ads, _unix_ms, time.monotonic, in_force)
        broadcaster = HealthBroadcaster(ads, control)
        ads.on_findings = broadcaster.notify
        metrics.show_published_sick(lambda: broadcaster.published)
        ads_address = await ads.start(settings.ads)
        stack.push_async_callback(ads.stop, GRACE_S)
        metrics_address = await _metrics_page(settings.metrics, registry, stack)
        metrics.show_unwritten(lambda: len(control.journal.held), lambda: control.journal.fault)
        service = AdminService(control, ads, broadcaster.sick, ads.refusals.newest)
        admin = AdminServer(service, ClientStatusService(ads))
        # The admin port is bound before anything is stored; it answers once there is a fleet.
        admin_address = admin.bind(settings.admin)
        stack.push_async_callback(admin.stop, GRACE_S)
        stack.push_async_callback(control.stop)
        await control.start(text, source)
        await admin.start()
        stack.push_async_callback(_ended, asyncio.create_task(broadcaster.run()))
        stack.push_async_callback(_watch(settings, text, control))
        # Objects alive now live until the end: a collection that scans them stops all threads.
        gc.collect()
        gc.freeze()
        _log.info(
            "control_server_ready",
            ads=ads_address,
            admin=admin_address,
            metrics=metrics_address,
            revision=control.revision,
            state=str(settings.state or "in memory"),
        )
        yield
        _log.info("control_server_stopping")


def _watch(settings: ControlSettings, text: str, control: Control) -> Callable[[], Awaitable[None]]:
    """Start to watch the fleet file; return the function that stops the watch."""
    source = str(settings.fleet)

    async def taken(changed: str) -> None:
        try:
            change = await control.apply_file(changed, source)
        except Exception as error:  # noqa: BLE001 - no file may end the server; see file_error
            _log.error("fleet_file_refused", error=str(error))
        else:
            _log.info("fleet_file_applied", revision=change.revision, changes=len(change.changes))

    def lost(fault: str) -> None:
        control.file_error = fault
        _log.error("fleet_file_unreadable", error=fault)

    watch = FileWatch(settings.fleet, taken, lost)
    watch.known(text)
    task = asyncio.create_task(watch.run())

    async def end() -> None:
        await _ended(task)

    return end


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _metrics_page(
    address: str, registry: CollectorRegistry, stack: contextlib.AsyncExitStack
) -> str:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application(client_max_size=1024)
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    host, _, port = address.rpartition(":")
    await web.TCPSite(runner, host.strip("[]"), int(port)).start()
    return f"{host}:{runner.addresses[0][1]}"


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000
