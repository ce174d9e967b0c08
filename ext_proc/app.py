"""A whole picker: the parts wired, run and stopped.

Law: on SIGTERM readiness goes first, then open streams get `Settings.drain` seconds while
membership and reports go on, then the rest ends. A part that ends by itself is a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import signal
import time
from typing import TYPE_CHECKING, Any, Final, Self

import grpc
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from ext_proc.feedback.fold import Feedback
from ext_proc.feedback.metrics import FeedbackMetrics
from ext_proc.feedback.probe import Prober, targets_of
from ext_proc.feedback.service import LogService
from ext_proc.fleet_client import CHANNEL_OPTIONS, FleetClient, PoolWatch
from ext_proc.observability import Metrics, debug_app
from ext_proc.reports import Reporter
from ext_proc.routing.router import Router
from ext_proc.service import AddressError, PickerServer
from ext_proc.settings import EXIT_USAGE
from ext_proc.telemetry.hub import Hub
from ext_proc.tokenizer_files import TokenizerFiles
from tidegate import logs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from ext_proc.routing.types import Pool
    from ext_proc.settings import Settings

SWEEP_S: Final = 1.0
"""Time between two looks for replicas that stand still."""

_log = structlog.stdlib.get_logger("ext_proc")


async def run_picker(settings: Settings) -> int:
    """Run a picker until SIGTERM or SIGINT.

    Returns:
        The exit code: 0 after a stop that was asked for, 1 after a crash of a part, 2 where an
        address cannot be listened on.
    """
    logs.configure(settings.log_format, settings.log_level)
    try:
        async with Picker(settings) as picker:
            return await picker.until_stopped()
    except AddressError as error:
        _log.error("cannot_start", reason=str(error))
        return EXIT_USAGE


class Picker:
    """All parts of a picker, wired: an async context manager.

    Args:
        settings: How it runs.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._rng = random.Random()  # noqa: S311 - ties and jitter, not secrets
        self._router = Router(self._rng, zone=settings.zone)
        router = self._router
        self._metrics = Metrics(
            CollectorRegistry(),
            in_flight=router.in_flight,
            pools=lambda: len(router.pools),
            index_blocks=lambda: router.index.blocks,
        )
        self._telemetry = Hub(router, self._metrics.registry, interval_s=settings.scrape_interval)
        life = f"{self._rng.getrandbits(32):08x}-"
        self._feedback = Feedback(router, picker=settings.id, life=life)
        self._logs = LogService(
            self._feedback,
            FeedbackMetrics(self._metrics.registry, self._feedback, router.conditions),
        )
        self._tokenizers = TokenizerFiles()
        self._server = PickerServer(
            router,
            picker=settings.id,
            metrics=self._metrics,
            at=settings.advertise or settings.listen,
            life=life,
            handlers=[self._logs.handler(), self._telemetry.push.handler()],
            tokenizers=self._tokenizers.ready,
        )
        self._prober = Prober(
            lambda pool, key, ready: router.conditions.probed(pool, key, ready=ready),
            router.conditions.indexed,
        )
        self._watch = PoolWatch(settings.id, self._take)
        self._stack = contextlib.AsyncExitStack()
        self._stop = asyncio.Event()
        self._fleet: FleetClient | None = None

    def _take(self, pools: Mapping[str, Pool]) -> None:
        self._router.set_pools(pools, time.monotonic())
        self._prober.set_targets(targets_of(pools))
        self._telemetry.set_pools(pools)
        self._tokenizers.set_pools(pools)

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()
        _log.info("picker_stopped")

    async def _start(self) -> None:
        settings = self._settings
        bound = await self._server.start(settings.listen)
        page = await self._stack.enter_async_context(
            _serve(
                debug_app(
                    self._metrics,
                    self._state,
                    lambda: self._ready,
                    lambda: self._router.recent.describe(time.monotonic()),
                ),
                settings.metrics,
            )
        )
        channel = await self._stack.enter_async_context(
            grpc.aio.insecure_channel(settings.xds, options=CHANNEL_OPTIONS)
        )
        self._fleet = FleetClient(
            channel,
            self._watch,
            rng=self._rng.random,
            on_connected=self._metrics.connected.set,
        )
        self._reporter = Reporter(
            channel,
            picker=settings.id,
            in_flight=self._router.in_flight,
            rng=self._rng.random,
            findings=self._router.conditions.findings,
        )
        _log.info("picker_started", id=settings.id, listen=bound, metrics=page, xds=settings.xds)

    async def _close(self) -> None:
        await self._server.stop(0)
        await self._stack.aclose()

    @property
    def _ready(self) -> bool:
        return self._watch.synced and not self._stop.is_set()

    def _state(self) -> dict[str, Any]:
        return {
            "picker": self._settings.id,
            "ready": self._ready,
            "router": self._router.state(time.monotonic()),
            "telemetry": self._telemetry.state(),
            "feedback": self._feedback.state(),
            "fleet": None if self._fleet is None else self._fleet.state(),
        }

    async def until_stopped(self) -> int:
        """Run the background parts until a signal; a part that ends by itself is a crash."""
        fleet = self._fleet
        if fleet is None:
            raise RuntimeError("enter the picker first")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        parts = [
            asyncio.create_task(fleet.run(), name="fleet"),
            asyncio.create_task(self._reporter.run(), name="reports"),
            asyncio.create_task(self._telemetry.run(), name="telemetry"),
            asyncio.create_task(self._prober.run(), name="prober"),
            asyncio.create_task(self._tokenizers.run(), name="tokenizers"),
            asyncio.create_task(self._sweep(), name="sweep"),
        ]
        announced = asyncio.create_task(self._announce(fleet), name="announce")
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        # What lives now lives to the end: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        done, _ = await asyncio.wait({*parts, stopped}, return_when=asyncio.FIRST_COMPLETED)
        crashed = [part for part in parts if part in done]
        for part in crashed:
            _log.error("part_ended", part=part.get_name(), exc_info=part.exception())
        self._stop.set()
        # Membership and reports go on while streams drain: others may wait for our counts.
        await self._server.stop(self._settings.drain)
        for task in (*parts, announced, stopped):
            task.cancel()
        await asyncio.gather(*parts, announced, stopped, return_exceptions=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        return 1 if crashed else 0

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._router.sweep(time.monotonic())

    async def _announce(self, fleet: FleetClient) -> None:
        await fleet.ready.wait()
        self._server.set_ready(ready=True)


@contextlib.asynccontextmanager
async def _serve(app: web.Application, address: str) -> AsyncIterator[str]:
    """Serve an HTTP application; yield its bound address."""
    host, _, port = address.rpartition(":")
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host.strip("[]"), int(port))
        try:
            await site.start()
        except OSError as error:
            raise AddressError(
                f"cannot listen on {address}: {error.strerror or error};"
                " choose another with --metrics"
            ) from error
        yield f"{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
