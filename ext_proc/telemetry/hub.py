"""Collects all telemetry of a picker and passes one merged view per endpoint to the router.

Rules:

1. A source's readings reach the router at once, merged with those of the other sources (``board``).
2. A replica is reported silent only if no source reports on it any more.
3. When no endpoint reports, routing continues by the ledger; this is logged once, and its end too.
4. A replica whose page cannot be read ``SILENT_AFTER`` times in a row is logged, at most once in
   ``COMPLAIN_S``, and so is its first page after that. If it still cannot be read when
   ``COMPLAIN_S`` have passed since the line before, that is logged then.
5. Of several workers on a machine one leads, and only the leader reads pages, but for those that
   other pickers of its group read. Each worker publishes everything that it collects to its peers,
   which handle it as if they had collected it themselves.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog
from prometheus_client import Gauge

from ext_proc.observability.counts import Counts
from ext_proc.routing.state.candidates import FRESH_S
from ext_proc.telemetry import orca
from ext_proc.telemetry.board import Board
from ext_proc.telemetry.configs import AskedTriton, ModelConfigs
from ext_proc.telemetry.dialects import Vocabulary
from ext_proc.telemetry.kv_events.collector import KvCollector
from ext_proc.telemetry.news import (
    GPU,
    ORCA,
    PAGE,
    PUSH,
    PushEnded,
    ReadingsUpdate,
    Restarted,
    ScrapeFailed,
)
from ext_proc.telemetry.pacing import Pacing
from ext_proc.telemetry.push import Push
from ext_proc.telemetry.scrape import Scraper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client import CollectorRegistry

    from ext_proc.routing.cache.index_events import CacheEvent
    from ext_proc.routing.cache.prefix_index import PrefixIndex
    from ext_proc.routing.values.pool import EndpointKey, Pool
    from ext_proc.routing.values.reading import Reading
    from ext_proc.telemetry.news import TelemetryUpdate
    from tidegate_common.upstream.contexts import ReplicaContexts, ReplicaTls

SILENT_AFTER: Final = 2
"""Consecutive failed scrapes before a replica counts as silent; a single one may be a hiccup."""
COMPLAIN_S: Final = 60.0
"""Minimum seconds between two log lines about one replica's page."""
GPU_EVERY_S: Final = 1.0
CHECK_EVERY_S: Final = 0.5
_WHOLE: Final = (PAGE, PUSH)
"""Sources that report values per model."""

_log = structlog.stdlib.get_logger("ext_proc.telemetry")


class TelemetryListener(Protocol):
    """The part of the router that telemetry uses."""

    index: PrefixIndex

    def cached(self, event: CacheEvent, /) -> None:
        """Apply a change of an engine's cache."""

    def observe(self, endpoint_id: str, readings: Sequence[Reading], /) -> None:
        """Set all readings of an endpoint."""

    def silent(self, endpoint_id: str, /) -> None:
        """Record that an endpoint no longer reports."""

    def restarted(self, endpoint_id: str, unix_now: float, /) -> None:
        """Record that an endpoint's process has restarted."""

    def in_flight(self) -> Mapping[str, int]:
        """Return the requests in flight by endpoint id."""


class Hub:
    """Collectors and the board that merges their readings.

    Args:
        listener: Receives the merged readings.
        registry: Registry of the ``tidegate_picker_telemetry_*`` metrics.
        interval_s: Seconds between two reads of a loaded replica's page.
        publish: Receives everything collected here, for the machine's other workers.
        loads: Returns the requests in flight of all workers by endpoint id; by default the
            listener's own.
        on_gone: Called with the id of an endpoint that restarted or cannot be read, and the time,
            monotonic seconds.
        clock: Monotonic seconds.
        wall_clock: Unix seconds.
        contexts: TLS contexts for questions to replicas.
        not_named: Returns why a call's peer may not speak for a replica; see ``Push``.
    """

    def __init__(
        self,
        listener: TelemetryListener,
        registry: CollectorRegistry,
        *,
        interval_s: float,
        publish: Callable[[TelemetryUpdate], None] = lambda _: None,
        loads: Callable[[], Mapping[str, int]] | None = None,
        on_gone: Callable[[str, float], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        contexts: ReplicaContexts | None = None,
        not_named: Callable[[Any, str], str | None] = lambda *_: None,
    ) -> None:
        self._listener = listener
        self._publish = publish
        self._on_gone = on_gone
        self._leading = True
        self._left: frozenset[tuple[str, str]] = frozenset()
        self._pages: tuple[dict[str, str], dict[str, Vocabulary]] = ({}, {})
        self._tls: dict[str, ReplicaTls] = {}
        self._gpu_pages: tuple[dict[str, str], dict[str, Vocabulary]] = ({}, {})
        """What the leader reads: URLs and vocabularies by endpoint."""
        self._clock = clock
        self._wall_clock = wall_clock
        self._board = Board()
        self._known: frozenset[str] = frozenset()
        self._paged: frozenset[str] = frozenset()
        """Endpoints whose metrics page the fleet names."""
        self._pushing: set[str] = set()
        self._blind = False
        self._unread: set[str] = set()
        """Endpoints whose page was logged as not read, and has not been read since."""
        self._complained: dict[str, float] = {}
        """When an endpoint's page was last logged as not read, monotonic seconds."""
        self._scraper = Scraper(
            self._read,
            lambda endpoint: self._collected(Restarted(endpoint)),
            self._not_read,
            clock=clock,
            loads=loads or listener.in_flight,
            pacing=Pacing(fast_s=interval_s),
            contexts=contexts,
        )
        self._gpus = Scraper(
            lambda endpoint, readings: self._collected(
                ReadingsUpdate(endpoint, GPU, readings, clock())
            ),
            lambda _: None,
            clock=clock,
            pacing=Pacing(fast_s=GPU_EVERY_S),
        )
        self.push = Push(
            lambda endpoint, readings, at: self._collected(
                ReadingsUpdate(endpoint, PUSH, readings, at)
            ),
            lambda endpoint: self._collected(Restarted(endpoint)),
            lambda endpoint: self._collected(PushEnded(endpoint)),
            clock=clock,
            not_named=not_named,
        )
        self._caches = KvCollector(listener, registry)
        self._configs = ModelConfigs(self._set_targets, contexts)
        self._tritons: dict[str, AskedTriton] = {}
        self._reports = Counts(
            "tidegate_picker_telemetry_load_reports",
            "Load reports in response headers (ORCA).",
            ["outcome"],
            registry,
        )
        self._stale = Gauge(
            "tidegate_picker_telemetry_stale_endpoints",
            f"Endpoints without a reading for {FRESH_S:g} s, of those that are read.",
            registry=registry,
        )
        Gauge(
            "tidegate_picker_telemetry_endpoints",
            "Endpoints from which readings are expected.",
            registry=registry,
        ).set_function(lambda: len(self._expected()))

    def kv_notes(self) -> Iterator[tuple[EndpointKey, str]]:
        """Yield the endpoints whose caches are guessed in spite of KV events, and why."""
        return self._caches.notes()

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Follow exactly the endpoints of these pools."""
        pages: dict[str, str] = {}
        gpu_pages: dict[str, str] = {}
        vocabularies: dict[str, Vocabulary] = {}
        gpus: dict[str, Vocabulary] = {}
        known: set[str] = set()
        tritons: dict[str, AskedTriton] = {}
        spoken: dict[str, ReplicaTls] = {}
        for pool in pools.values():
            tls, probed = pool.upstream_tls, any(each.probe_path for each in pool.variants)
            for endpoint in pool.endpoints:
                name = endpoint.key.id
                known.add(name)
                if tls is not None:
                    spoken[name] = tls
                if endpoint.metrics_url is not None and endpoint.http is not None and probed:
                    models = tritons[name].models if name in tritons else frozenset()
                    tritons[name] = AskedTriton(endpoint.http, models | pool.models, tls)
                if endpoint.metrics_url is not None:
                    pages[name] = endpoint.metrics_url
                if endpoint.gpu_metrics_url is not None:
                    gpu_pages[name] = endpoint.gpu_metrics_url
                    gpus[name] = Vocabulary(gpus=endpoint.gpus)
                if pool.custom_metrics:
                    earlier = vocabularies.get(name)
                    declared = (*(earlier.declared if earlier else ()), *pool.custom_metrics)
                    vocabularies[name] = Vocabulary(declared)
        self._board.set_endpoints(known)
        self._unread &= known
        self._complained = {e: at for e, at in self._complained.items() if e in known}
        self._known, self._paged = frozenset(known), frozenset(pages)
        self._pages, self._tritons, self._tls = (pages, vocabularies), tritons, spoken
        self._gpu_pages = (gpu_pages, gpus)
        self._set_targets()
        self._caches.set_pools(pools)

    def lead(self, leading: bool) -> None:
        """Read the pages in this worker, or leave that to another one."""
        if leading != self._leading:
            self._leading = leading
            self._set_targets()

    def leave(self, pages: frozenset[tuple[str, str]]) -> None:
        """Leave these pages, each an endpoint and its source, to others from now on."""
        self._left = pages
        self._set_targets()

    def take(self, news: TelemetryUpdate) -> None:
        """Apply what this worker or a peer has collected."""
        if isinstance(news, ReadingsUpdate):
            self._observe(*news)
        elif isinstance(news, ScrapeFailed):
            quiet = news.endpoint in self._paged - self._pushing
            if news.failures >= SILENT_AFTER and quiet:
                self._listener.silent(news.endpoint)
                self._on_gone(news.endpoint, self._clock())
        elif isinstance(news, Restarted):
            self._board.clear(news.endpoint)
            self._on_gone(news.endpoint, self._clock())
            self._configs.restarted(news.endpoint)
            self._listener.restarted(news.endpoint, self._wall_clock())
        else:
            self._pushing.discard(news.endpoint)
            self._board.drop(news.endpoint, PUSH)

    async def run(self) -> None:
        """Collect until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._scraper.run())
            tasks.create_task(self._gpus.run())
            tasks.create_task(self._caches.run())
            tasks.create_task(self._configs.run())
            tasks.create_task(self._watch())

    def reported(self, endpoint: str, headers: Sequence[tuple[str, str]]) -> None:
        """Apply a load report from response headers (ORCA), unless a better source is fresh.

        A page or a push has values per model. A report does not name the model of its values, so
        besides the others it would count the same requests twice.
        """
        now = self._clock()
        for source, at in self._board.sources(endpoint).items():
            if source in _WHOLE and now - at <= FRESH_S:
                return
        try:
            reading = orca.read(headers, now)
        except orca.NoReportError as error:
            self._reports.add(("unreadable",))
            _log.debug("load_report_unreadable", endpoint=endpoint, reason=str(error))
            return
        self._reports.add(("taken",))
        self._collected(ReadingsUpdate(endpoint, ORCA, (reading,), now))

    def check(self) -> int:
        """Count the endpoints with stale telemetry; log when all are stale and when that ends."""
        now = self._clock()
        expected = self._expected()
        stale = 0
        for endpoint in expected:
            age = self._board.age_s(endpoint, now)
            stale += age is None or age > FRESH_S
        self._stale.set(stale)
        blind = stale == len(expected) > 0
        if blind and not self._blind:
            _log.warning("telemetry_lost", endpoints=stale, routing_by="in-flight ledger")
        elif self._blind and not blind:
            _log.info("telemetry_back", endpoints=len(expected) - stale)
        self._blind = blind
        return stale

    def state(self) -> dict[str, Any]:
        """Return sources and their ages, for debugging."""
        now = self._clock()
        return {
            "pages": self._scraper.state(),
            "gpu_pages": self._gpus.state(),
            "push": self.push.state(),
            "kv_events": self._caches.state(),
            "ages_s": {
                endpoint: {
                    source: round(now - at, 3)
                    for source, at in self._board.sources(endpoint).items()
                }
                for endpoint in sorted(self._expected())
            },
        }

    def _expected(self) -> frozenset[str]:
        """Return the endpoints that should report telemetry."""
        return (self._paged | self._pushing) & self._known

    async def _watch(self) -> None:
        # A source that has just started is not lost yet.
        await asyncio.sleep(FRESH_S)
        while True:
            self.check()
            await asyncio.sleep(CHECK_EVERY_S)

    def _observe(
        self, endpoint: str, source: str, readings: tuple[Reading, ...], at: float
    ) -> None:
        if source == PUSH:
            self._pushing.add(endpoint)
        self._listener.observe(endpoint, self._board.put(endpoint, source, readings, at))

    def _read(self, endpoint: str, readings: tuple[Reading, ...]) -> None:
        if endpoint in self._unread:
            self._unread.discard(endpoint)
            _log.info("page_read_again", replica=endpoint)
        self._collected(ReadingsUpdate(endpoint, PAGE, readings, self._clock()))

    def _not_read(self, endpoint: str, failures: int, reason: str) -> None:
        if failures == SILENT_AFTER or (failures > SILENT_AFTER and endpoint not in self._unread):
            now = self._clock()
            if now - self._complained.get(endpoint, -COMPLAIN_S) >= COMPLAIN_S:
                self._complained[endpoint] = now
                self._unread.add(endpoint)
                _log.warning(
                    "page_not_read",
                    replica=endpoint,
                    url=self._pages[0].get(endpoint),
                    reason=reason,
                )
        self._collected(ScrapeFailed(endpoint, failures))

    def _collected(self, news: TelemetryUpdate) -> None:
        self.take(news)
        self._publish(news)

    def _set_targets(self) -> None:
        if self._leading:
            pages, vocabularies = self._pages
            changed = {}
            for name in pages:
                decoupled, slots = self._configs.decoupled(name), self._configs.slots(name)
                if decoupled or slots:
                    declared = vocabularies[name].declared if name in vocabularies else ()
                    batches = self._configs.batches(name)
                    changed[name] = Vocabulary(
                        declared, decoupled=decoupled, slots=slots, batches=batches
                    )
            self._scraper.set_targets(self._own(pages, PAGE), vocabularies | changed, self._tls)
            self._configs.set_targets(self._tritons)
            gpu_pages, gpus = self._gpu_pages
            self._gpus.set_targets(self._own(gpu_pages, GPU), gpus)
        else:
            self._scraper.set_targets({})
            self._configs.set_targets({})
            self._gpus.set_targets({})

    def _own(self, pages: Mapping[str, str], source: str) -> dict[str, str]:
        """Return the pages that are not left to others."""
        return {name: url for name, url in pages.items() if (name, source) not in self._left}
