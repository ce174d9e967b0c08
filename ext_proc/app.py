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
import secrets
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import structlog
from prometheus_client import CollectorRegistry, Gauge

from ext_proc.compiled import compiled
from ext_proc.control.chat_files import ChatFiles
from ext_proc.control.fleet_client import CHANNEL_OPTIONS, FleetClient, PoolWatch
from ext_proc.control.inquiries import InquiryAnswerer
from ext_proc.control.pools import log_slot
from ext_proc.control.relieving import relieve
from ext_proc.control.reporting.canaries import CanaryReports
from ext_proc.control.reporting.details import Details
from ext_proc.control.reporting.sequences import OpenSequences
from ext_proc.control.reporting.sweep import sweep
from ext_proc.control.reporting.watch import ReplicaWatch
from ext_proc.control.reports import ReportSender
from ext_proc.control.tokenizer_files import TokenizerFiles
from ext_proc.exchange import ExchangeOptions
from ext_proc.feedback.fold import Feedback
from ext_proc.feedback.metrics import FeedbackMetrics
from ext_proc.feedback.service import LogService
from ext_proc.observability.counts import Scraped
from ext_proc.observability.group_metrics import of_group
from ext_proc.observability.metrics import Metrics, debug_app
from ext_proc.observability.pages import serve_page
from ext_proc.observability.records import RequestRecords
from ext_proc.observability.replica_metrics import of_requests, show_replicas
from ext_proc.observability.spans import tracing_to
from ext_proc.observability.traffic import Places, TrafficCounts
from ext_proc.probing import Probing
from ext_proc.routing.router import Router
from ext_proc.server.port import security_of
from ext_proc.server.service import PickerServer
from ext_proc.server.transport import named
from ext_proc.settings import AddressError
from ext_proc.telemetry.hops import HopMeter
from ext_proc.telemetry.hub import Hub
from ext_proc.telemetry.push import ending
from ext_proc.workers.bus import Bus, WorkerPlace
from ext_proc.workers.group.joining import GroupJoin
from ext_proc.workers.group.members import GroupPlan
from ext_proc.workers.plan import picker_of
from tidegate_common.tls.channel import open_channel
from tidegate_common.tls.denied import DeniedPeers
from tidegate_common.tls.metrics import CertificateMetrics
from tidegate_common.tls.rpc import client_tls, peer_of
from tidegate_common.tls.settings import secured as secured_by
from tidegate_common.upstream.contexts import ReplicaContexts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.control.source import PoolFeed, PoolSource
    from ext_proc.routing.values.pool import Pool
    from ext_proc.settings import PickerSettings
    from ext_proc.workers.account import LocalEvent

_log = structlog.stdlib.get_logger("ext_proc")


class Picker:
    """All parts of a picker, wired: an async context manager.

    Args:
        settings: The picker's settings.
        place: This process's place among the workers of one picker; ``None`` = the only process.
        source: Where its pools come from; ``None`` = the control server.

    Raises:
        MissingExtraError: A setting needs an extra that is not installed.
        TlsError: The certificate's files cannot be used.
    """

    def __init__(
        self,
        settings: PickerSettings,
        place: WorkerPlace | None = None,
        source: PoolSource | None = None,
    ) -> None:
        self._settings = settings
        self._source = source
        self._at = settings.advertise or settings.listen
        self._transport = named(settings.transport)
        self._secured, self._refused = secured_by(settings), DeniedPeers()
        self._place = place
        self._replicates = place is not None or settings.group_listen is not None
        self._bus: Bus | None = None
        self._announced = False
        self._rng = random.Random()  # noqa: S311 - ties and jitter, not secrets
        # A single process has no peers, so it creates no replication events.
        self._router = Router(
            self._rng,
            zone=settings.zone,
            on_event=self._publish if self._replicates else None,
            on_sequence=self._catch_up if self._replicates else None,
        )
        router = self._router
        self._traffic = TrafficCounts(Places(router.registry).find)
        self._metrics = Metrics(
            CollectorRegistry(),
            in_flight=router.registry.in_flight,
            pools=lambda: len(router.pools),
            index_blocks=lambda: router.index.blocks,
            reused=router.reuse.tokens,
            abandoned=router.registry.abandoned.__len__,
            require_pick=settings.require_pick,
            traffic=self._traffic,
        )
        shown = self._metrics.registry
        show_replicas(shown, router)
        Gauge(
            "tidegate_picker_relief",
            "What is left out because the CPU does not suffice: 0 nothing, 1 prompts, 2 picks.",
            registry=shown,
        ).set_function(lambda: router.relief.level)
        CertificateMetrics(shown, "tidegate_picker", self._secured)
        Scraped(shown, lambda: of_group(() if self._bus is None else self._bus.members()))
        contexts = ReplicaContexts()
        self._telemetry = Hub(
            router.registry,
            shown,
            interval_s=settings.scrape_interval,
            loads=router.registry.loads,
            publish=self._publish,
            on_gone=router.suspicion.probe_failed,
            contexts=contexts,
            not_named=self._not_named,
        )
        self._hops = HopMeter(router.hops)
        self._tokenizers = TokenizerFiles()
        self._chats = ChatFiles(self._tokenizers.ready, contexts=contexts)
        self._watching = ReplicaWatch(
            router,
            time.monotonic,
            time.time,
            lambda: self._leading,
            self._telemetry.kv_notes,
            self._chats.notes,
            self._reporters,
        )
        told = self._watching.notes, self._traffic.endpoints, self._chats.checks
        Scraped(shown, lambda: of_requests(told[0](), *told[1:]))
        life = f"{secrets.token_hex(8)}-"
        self._records = RequestRecords(life)
        self._feedback = Feedback(
            router,
            picker=settings.id,
            life=life,
            on_judged=self._publish if self._replicates else None,
            on_chat=self._chats.counted,
        )
        self._logs = LogService(
            self._feedback,
            FeedbackMetrics(shown, self._feedback, router.conditions, self._traffic),
            self._traffic,
            self._records,
        )
        self._tracing = None if settings.otlp is None else tracing_to(settings.otlp, settings.id)
        self._server = PickerServer(
            router,
            picker=settings.id,
            metrics=self._metrics,
            at=self._at,
            life=life,
            handlers=[self._logs.handler(), self._telemetry.push.handler()],
            on_loads=self._telemetry.reported,
            tracing=self._tracing,
            refresh=self._refresh if self._replicates else None,
            transport=self._transport,
            security=security_of(self._secured, self._refused.note),
            options=ExchangeOptions(
                settings.destinations == "one",
                settings.require_pick,
                settings.require_model,
                self._tokenizers.ready,
                self._chats.ready,
            ),
            records=self._records,
        )
        self._probing = Probing(
            router.conditions,
            router.placement,
            router.suspicion,
            router.registry.members,
            self._publish,
            contexts,
        )
        self._watch = PoolWatch(settings.id, self._take)
        self._stack = contextlib.AsyncExitStack()
        self._stop = asyncio.Event()
        self._fleet: PoolFeed | None = None
        self._reporter: ReportSender | None = None
        self._join: GroupJoin | None = None

    def _take(self, pools: Mapping[str, Pool]) -> None:
        self._router.set_pools(pools, time.monotonic())
        self._traffic.set_pools(pools)
        if pools:
            self._server.expect_bodies(max(pool.max_body_bytes for pool in pools.values()))
        self._server.set_log_slot(log_slot(pools.values(), self._at))
        self._probing.ask(pools, leading=self._leading)
        self._telemetry.set_pools(pools)
        self._hops.set_pools(pools)
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

    def _lead(self, leading: bool) -> None:
        self._telemetry.lead(leading)
        self._probing.ask(self._router.pools, leading=self._leading)

    @property
    def _leading(self) -> bool:
        return self._bus is None or self._bus.leading

    # --- Life cycle -------------------------------------------------------------------------------

    def _leave(self, now: float) -> None:
        """Let requests leave replicas that are found hung."""
        self._server.leave(self._feedback.hung(now))

    def _not_named(self, context: Any, replica: str) -> str | None:
        """Return why a call's peer may not speak for a replica; ``None`` = it may."""
        if self._secured is None:
            return None
        peer = peer_of(context)
        reason = self._secured.table.not_named(peer, "reporter", replica)
        if reason is not None:
            self._refused.note(context.peer(), peer, reason)
        return reason

    def _reporters(self) -> dict[str, str]:
        """Return which replicas' reporters have certificates that end soon, and when."""
        secured, held = self._secured, self._telemetry.push.certificates
        if secured is None or not held:
            return {}
        return ending(held, time.time(), secured.max_age_s)

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
        if self._replicates:
            self._bus = Bus(
                self._place or WorkerPlace(None, 0, 1),
                self._router.peers,
                on_telemetry=self._telemetry.take,
                on_judged=self._feedback.follow,
                on_found=self._probing.follow,
                on_lead=self._lead,
                on_left=self._telemetry.leave,
                listings=self._probing.listings,
                group=self._group(),
            )
            self._stack.callback(self._bus.close)
            self._router.owners = self._bus.owners
            if settings.group_members is not None:
                _log.warning("group_unlisted", reason="halves may place a sequence twice")
            try:
                self._bus.open()
            except OSError as error:
                raise AddressError(f"--group-listen {settings.group_listen}: {error}") from None
        bound = await self._server.start(settings.listen)
        page = await self._stack.enter_async_context(
            serve_page(
                debug_app(
                    self._metrics,
                    self._state,
                    lambda: self._ready,
                    lambda: self._router.recent.describe(time.monotonic()),
                    lambda kind: self._records.describe(kind, time.monotonic()),
                ),
                settings.metrics,
                self._secured,
                self._refused.note,
                settings.health_port,
            )
        )
        if self._source is None:
            await self._connect()
        else:
            self._fleet = self._source.feed(self._take)
        _log.info(
            "picker_started",
            id=settings.id,
            listen=bound,
            metrics=page,
            xds=settings.xds if self._source is None else self._source.name,
            transport=self._transport,
            compiled=compiled(),
        )

    async def _connect(self) -> None:
        settings = self._settings
        tls = client_tls(self._secured, settings.tls_server_name)
        bits = self._rng.getrandbits
        opened = open_channel(settings.xds, tls, CHANNEL_OPTIONS)
        channel = await self._stack.enter_async_context(opened)
        self._fleet = FleetClient(
            channel, self._watch, rng=self._rng.random, on_connected=self._connected
        )
        self._reporter = ReportSender(
            channel,
            picker=settings.id,
            in_flight=self._router.registry.in_flight,
            taken=lambda: self._watch.taken,
            rng=self._rng.random,
            findings=self._router.conditions.findings,
            passes=self._metrics.passes.by_reason,
            relief=lambda: self._router.relief.level,
            missing=lambda: () if self._bus is None else self._bus.missing(),
            group=picker_of(settings.id, self._place.number) if self._place else "",
            details=Details(
                self._traffic,
                self._watching,
                bits(64),
                time.monotonic,
                self._router.placement,
            ),
            beside=InquiryAnswerer(channel, settings.id, self._records, self._rng.random),
            sequences=OpenSequences(
                self._router.leases, lambda: self._router.registry.pools, time.monotonic
            ),
            leaving=self._router.leaving,
            canaries=CanaryReports(
                self._router.registry.canaries.running, time.monotonic, time.time
            ),
        )

        if self._bus is not None and settings.group_listen and settings.group_members is None:
            bus = self._bus
            self._join = GroupJoin(
                channel,
                settings.id,
                lambda places: bus.standing(places=places),
                bus.group_changed,
                bus.take_list,
                self._rng.random,
            )

    def _group(self) -> GroupPlan | None:
        settings = self._settings
        if settings.group_listen is None or not self._secured:
            return None
        return GroupPlan(
            settings.id,
            0 if self._place is None else self._place.number,
            settings.group_listen,
            tuple(settings.group_members.split(",")) if settings.group_members else (),
            self._secured,
            self._refused,
            time.time_ns(),
        )

    def _connected(self, connected: bool) -> None:
        self._metrics.connected.set(connected)
        for part in (self._reporter, self._join) if connected else ():
            if part is not None:
                part.wake()

    async def _close(self) -> None:
        await self._server.stop(0)
        await self._stack.aclose()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    @property
    def _ready(self) -> bool:
        return self._announced and not self._stop.is_set()

    def _state(self) -> dict[str, Any]:
        return {
            "picker": self._settings.id,
            "ready": self._ready,
            "transport": self._transport,
            "compiled": compiled(),
            "passes": self._metrics.passes.state(),
            "router": self._router.state(time.monotonic()),
            "telemetry": self._telemetry.state(),
            "chats": self._chats.state(),
            "feedback": self._feedback.state(),
            "probing": self._probing.state(),
            "fleet": None if self._fleet is None else self._fleet.state(),
            "workers": None if self._bus is None else self._bus.state(),
        }

    async def until_stopped(self) -> int:
        """Run the background parts until a signal or until one of them ends, which is a crash."""
        fleet, router = self._fleet, self._router
        if fleet is None:
            raise RuntimeError("enter the picker first")
        loop = asyncio.get_running_loop()
        parts = [
            asyncio.create_task(fleet.run(), name="fleet"),
            asyncio.create_task(self._telemetry.run(), name="telemetry"),
            asyncio.create_task(self._probing.run(), name="probing"),
            asyncio.create_task(self._hops.run(), name="hops"),
            asyncio.create_task(self._tokenizers.run(), name="tokenizers"),
            asyncio.create_task(self._chats.run(), name="chats"),
            asyncio.create_task(relieve(router.relief), name="relief"),
            asyncio.create_task(
                sweep(router.registry, router.suspicion, self._watching, self._leave), name="sweep"
            ),
        ]
        if self._secured is not None:
            parts.append(asyncio.create_task(self._secured.identity.follow(), name="certificate"))
        if self._reporter is not None:
            parts.append(asyncio.create_task(self._reporter.run(), name="reports"))
        if self._bus is not None:
            parts.append(asyncio.create_task(self._bus.run(), name="bus"))
        if self._join is not None:
            parts.append(asyncio.create_task(self._join.run(), name="group"))
        self._heed(loop)
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
        if self._join is not None:
            self._server.set_ready(ready=False)
            await self._join.leave()
        # Pool updates and reports continue while streams drain: drains wait for our counts.
        await self._server.stop(self._settings.drain)
        for task in (*parts, announced, stopped):
            task.cancel()
        await asyncio.gather(*parts, announced, stopped, return_exceptions=True)
        self._heed_no_more(loop)
        return 1 if crashed else 0

    def _heed(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop at a signal, and at the end of the parent process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        if self._place is not None:
            loop.add_reader(sys.stdin.fileno(), self._orphaned, loop)

    def _orphaned(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(sys.stdin.fileno())  # its end stays readable while streams drain
        self._stop.set()

    def _heed_no_more(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        if self._place is not None:
            loop.remove_reader(sys.stdin.fileno())

    async def _announce(self, fleet: PoolFeed) -> None:
        await fleet.ready.wait()
        if self._bus is not None:
            await self._bus.join()
        if self._join is not None:
            self._join.ready()
        self._announced = True
        self._server.set_ready(ready=True)
