"""A complete picker, or one of its workers: wires the parts, runs them and stops them.

Rules:

1. On SIGTERM readiness is withdrawn first. Open streams then get `Settings.drain` seconds, during
   which pool updates and reports continue. Everything else stops after that.
2. A part that returns or raises by itself is a crash of the picker.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Self

import grpc
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from ext_proc.blame.deaths import REFUSED_S
from ext_proc.blame.fingerprint import shown
from ext_proc.compiled import compiled
from ext_proc.control.chat_files import ChatFiles
from ext_proc.control.fleet_client import CHANNEL_OPTIONS, FleetClient, PoolWatch
from ext_proc.control.pools import log_slot
from ext_proc.control.reports import ReportSender
from ext_proc.control.tokenizer_files import TokenizerFiles
from ext_proc.feedback.fold import Feedback
from ext_proc.feedback.metrics import FeedbackMetrics
from ext_proc.feedback.probe import Prober, targets_of
from ext_proc.feedback.service import LogService
from ext_proc.observability.death_metrics import DeathMetrics
from ext_proc.observability.metrics import Metrics, debug_app
from ext_proc.observability.replica_metrics import ReplicaMetrics
from ext_proc.routing.router import Router
from ext_proc.server.service import AddressError, PickerServer
from ext_proc.server.transport import named
from ext_proc.settings import EXIT_USAGE, MissingExtraError
from ext_proc.telemetry.hub import Hub
from ext_proc.workers.bus import Bus
from ext_proc.workers.news import Indexed, Probed
from tidegate_common import logs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from ext_proc.observability.tracing import Tracing
    from ext_proc.routing.values.pool import Pool
    from ext_proc.settings import PickerSettings
    from ext_proc.workers.account import LocalEvent
    from ext_proc.workers.bus import WorkerPlace

SWEEP_S: Final = 1.0
"""Interval between two sweeps of the registry for stalled replicas."""

_log = structlog.stdlib.get_logger("ext_proc")


async def run_picker(settings: PickerSettings, place: WorkerPlace | None = None) -> int:
    """Run a picker until SIGTERM or SIGINT.

    Args:
        settings: The picker's settings.
        place: This process's place among the workers of one picker. A worker also stops at the
            end of its standard input, because its parent process is gone.

    Returns:
        The exit code: 0 after a requested stop, 1 after a crash of a part, 2 where an address
        cannot be bound or an extra is missing.
    """
    logs.configure(settings.log_format, settings.log_level)
    try:
        async with Picker(settings, place) as picker:
            return await picker.until_stopped()
    except (AddressError, MissingExtraError) as error:
        _log.error("cannot_start", reason=str(error))
        return EXIT_USAGE


class Picker:
    """All parts of a picker, wired: an async context manager.

    Args:
        settings: The picker's settings.
        place: This process's place among the workers of one picker; ``None`` = the only process.

    Raises:
        MissingExtraError: A setting needs an extra that is not installed.
    """

    def __init__(self, settings: PickerSettings, place: WorkerPlace | None = None) -> None:
        self._settings = settings
        self._at = settings.advertise or settings.listen
        self._transport = named(settings.transport)
        self._place = place
        self._bus: Bus | None = None
        self._announced = False
        self._rng = random.Random()  # noqa: S311 - ties and jitter, not secrets
        # A single process has no peers, so it creates no replication events.
        self._router = Router(
            self._rng,
            zone=settings.zone,
            on_event=None if place is None else self._publish,
            on_sequence=None if place is None else self._catch_up,
        )
        router = self._router
        self._metrics = Metrics(
            CollectorRegistry(),
            in_flight=router.registry.in_flight,
            pools=lambda: len(router.pools),
            index_blocks=lambda: router.index.blocks,
            reused=router.reuse.tokens,
            abandoned=router.registry.abandoned.__len__,
        )
        ReplicaMetrics(self._metrics.registry, router.registry.replicas)
        DeathMetrics(self._metrics.registry, router.suspicion)
        self._telemetry = Hub(
            router.registry,
            self._metrics.registry,
            interval_s=settings.scrape_interval,
            loads=router.registry.loads,
            publish=self._publish,
            on_gone=router.suspicion.deaths.gone,
        )
        life = f"{self._rng.getrandbits(32):08x}-"
        self._feedback = Feedback(
            router,
            picker=settings.id,
            life=life,
            on_judged=None if place is None else self._publish,
        )
        self._logs = LogService(
            self._feedback,
            FeedbackMetrics(self._metrics.registry, self._feedback, router.conditions),
        )
        self._tokenizers = TokenizerFiles()
        self._chats = ChatFiles(self._tokenizers.ready)
        self._tracing = None if settings.otlp is None else _tracing(settings.otlp, settings.id)
        self._server = PickerServer(
            router,
            picker=settings.id,
            metrics=self._metrics,
            at=self._at,
            life=life,
            handlers=[self._logs.handler(), self._telemetry.push.handler()],
            tokenizers=self._tokenizers.ready,
            chats=self._chats.ready,
            on_loads=self._telemetry.reported,
            tracing=self._tracing,
            refresh=None if place is None else self._refresh,
            transport=self._transport,
        )
        self._prober = Prober(
            lambda *found: self._probed(Probed(*found)),
            lambda *found: self._probed(Indexed(*found)),
        )
        self._watch = PoolWatch(settings.id, self._take)
        self._stack = contextlib.AsyncExitStack()
        self._stop = asyncio.Event()
        self._fleet: FleetClient | None = None

    def _take(self, pools: Mapping[str, Pool]) -> None:
        self._router.set_pools(pools, time.monotonic())
        if pools:
            self._server.expect_bodies(max(pool.max_body_bytes for pool in pools.values()))
        self._server.set_log_slot(log_slot(pools.values(), self._at))
        self._set_probe_targets()
        self._telemetry.set_pools(pools)
        self._tokenizers.set_pools(pools)
        self._chats.set_pools(pools)

    # --- Replication between peer workers ---------------------------------------------------------

    def _publish(self, event: LocalEvent) -> None:
        if self._bus is not None:
            self._bus.publish(event)

    def _catch_up(self) -> None:
        if self._bus is not None:
            self._bus.catch_up()

    def _refresh(self) -> None:
        if self._bus is not None:
            self._bus.refresh()

    def _probed(self, found: Probed | Indexed) -> None:
        found.take(self._router.conditions)
        self._publish(found)
        if isinstance(found, Probed) and not found.ready:
            self._router.suspicion.gone(found.endpoint.id, time.monotonic())

    def _lead(self, leading: bool) -> None:
        self._telemetry.lead(leading)
        self._set_probe_targets()

    def _set_probe_targets(self) -> None:
        """Probe replicas if this worker leads; otherwise leave probing to the leader."""
        leading = self._bus is None or self._bus.leading
        self._prober.set_targets(targets_of(self._router.pools) if leading else set())

    # --- Life cycle -------------------------------------------------------------------------------

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
        if self._place is not None:
            self._bus = Bus(
                self._place,
                self._router.peers,
                on_telemetry=self._telemetry.take,
                on_judged=self._feedback.follow,
                on_lead=self._lead,
            )
            self._stack.callback(self._bus.close)
            self._bus.open()
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
            on_connected=self._connected,
        )
        self._reporter = ReportSender(
            channel,
            picker=settings.id,
            in_flight=self._router.registry.in_flight,
            taken=lambda: self._watch.taken,
            rng=self._rng.random,
            findings=self._router.conditions.findings,
            group=_group(settings.id, self._place),
        )
        _log.info(
            "picker_started",
            id=settings.id,
            listen=bound,
            metrics=page,
            xds=settings.xds,
            transport=self._transport,
            compiled=compiled(),
        )

    def _connected(self, connected: bool) -> None:
        self._metrics.connected.set(connected)
        if connected:
            self._reporter.wake()

    async def _close(self) -> None:
        await self._server.stop(0)
        await self._stack.aclose()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    @property
    def _ready(self) -> bool:
        return self._announced and self._watch.synced and not self._stop.is_set()

    def _state(self) -> dict[str, Any]:
        return {
            "picker": self._settings.id,
            "ready": self._ready,
            "transport": self._transport,
            "compiled": compiled(),
            "router": self._router.state(time.monotonic()),
            "telemetry": self._telemetry.state(),
            "chats": self._chats.state(),
            "feedback": self._feedback.state(),
            "fleet": None if self._fleet is None else self._fleet.state(),
            "workers": None if self._bus is None else self._bus.state(),
        }

    async def until_stopped(self) -> int:
        """Run the background parts until a signal or until one of them ends, which is a crash."""
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
            asyncio.create_task(self._chats.run(), name="chats"),
            asyncio.create_task(self._sweep(), name="sweep"),
        ]
        if self._bus is not None:
            parts.append(asyncio.create_task(self._bus.run(), name="bus"))
            loop.add_reader(sys.stdin.fileno(), self._stop.set)
        announced = asyncio.create_task(self._announce(fleet), name="announce")
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        # Objects alive now live until the end: exempt them from garbage collection.
        gc.collect()
        gc.freeze()
        done, _ = await asyncio.wait({*parts, stopped}, return_when=asyncio.FIRST_COMPLETED)
        crashed = [part for part in parts if part in done]
        for part in crashed:
            _log.error("part_ended", part=part.get_name(), exc_info=part.exception())
        self._stop.set()
        # Pool updates and reports continue while streams drain: drains wait for our counts.
        await self._server.stop(self._settings.drain)
        for task in (*parts, announced, stopped):
            task.cancel()
        await asyncio.gather(*parts, announced, stopped, return_exceptions=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        if self._bus is not None:
            loop.remove_reader(sys.stdin.fileno())
        return 1 if crashed else 0

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._router.registry.sweep(time.monotonic())
            for found in self._router.suspicion.sweep(time.monotonic()):
                _log.warning(
                    "deadly_request",
                    fingerprint=shown(found.fingerprint),
                    replicas=found.replicas,
                    refused_for_s=REFUSED_S,
                )

    async def _announce(self, fleet: FleetClient) -> None:
        await fleet.ready.wait()
        if self._bus is not None:
            await self._bus.join()
        self._announced = True
        self._server.set_ready(ready=True)


def _group(picker: str, place: WorkerPlace | None) -> str:
    """Return the name under which all workers of a picker report findings."""
    return "" if place is None else picker.removesuffix(f".w{place.number}")


def _tracing(collector: str, picker: str) -> Tracing:
    """Create the exporter of spans.

    Raises:
        MissingExtraError: OpenTelemetry is not installed.
    """
    try:
        from ext_proc.observability.tracing import Tracing  # noqa: PLC0415 - an extra, and slow to load
    except ImportError as error:
        raise MissingExtraError(
            f"--otlp needs OpenTelemetry: pip install 'tidegate[otel]' ({error})"
        ) from error
    return Tracing.to(collector, picker)


@contextlib.asynccontextmanager
async def _serve(app: web.Application, address: str) -> AsyncIterator[str]:
    """Serve an HTTP application and yield its bound address."""
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
