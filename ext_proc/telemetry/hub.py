"""All telemetry of a picker: sources in, one merged view per endpoint to the router.

Laws:
* What a source says reaches the router at once, merged with what the others said (``board``).
* A replica is called silent only where no source tells of it any more.
* When nothing is heard of any endpoint, routing goes on by the ledger; that is logged once, and so
  is its end.
* Of several workers on a machine one leads: it alone reads pages. Each tells the others all that
  it collects, and they take it as if they had collected it themselves.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog
from prometheus_client import Gauge

from ext_proc.observability.counts import Counts
from ext_proc.routing.state.replica import FRESH_S
from ext_proc.telemetry import orca
from ext_proc.telemetry.board import Board
from ext_proc.telemetry.dialects import Vocabulary
from ext_proc.telemetry.kv_events.collector import KvCollector
from ext_proc.telemetry.news import Failed, Heard, PushEnded, Restarted
from ext_proc.telemetry.pacing import Pacing
from ext_proc.telemetry.push import Push
from ext_proc.telemetry.scrape import Scraper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from prometheus_client import CollectorRegistry

    from ext_proc.routing.cache.exact_index import CacheEvent, ExactIndex
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.reading import Reading
    from ext_proc.telemetry.news import News

SILENT_AFTER: Final = 2
"""Scrapes in a row that fail before a replica counts as silent; one may be a hiccup."""
GPU_EVERY_S: Final = 1.0
LOOK_EVERY_S: Final = 0.5
PAGE: Final = "page"
GPU: Final = "gpu"
PUSH: Final = "push"
ORCA: Final = "orca"
_WHOLE: Final = (PAGE, PUSH)
"""Sources that tell of each model."""

_log = structlog.stdlib.get_logger("ext_proc.telemetry")


class TelemetryListener(Protocol):
    """The router, as far as telemetry goes."""

    index: ExactIndex

    def cached(self, event: CacheEvent, /) -> None:
        """Take what an engine says of its cache."""

    def observe(self, endpoint_id: str, readings: Sequence[Reading], /) -> None:
        """Take all readings of an endpoint."""

    def silent(self, endpoint_id: str, /) -> None:
        """Note that an endpoint tells nothing any more."""

    def restarted(self, endpoint_id: str, unix_now: float, /) -> None:
        """Note that an endpoint's process is a new one."""

    def in_flight(self) -> Mapping[str, int]:
        """Return the requests in flight by endpoint id."""


class Hub:
    """Collectors and the board.

    Args:
        listener: Who is told.
        registry: Where ``tidegate_picker_telemetry_*`` are registered.
        interval_s: Seconds between two reads of a loaded replica's page.
        tell: Hears what was collected here, for the other workers of the machine.
        loads: Returns the requests in flight by endpoint id, those of all workers; by default the
            listener's own.
        clock: Monotonic seconds.
        wall_clock: Unix seconds.
    """

    def __init__(
        self,
        listener: TelemetryListener,
        registry: CollectorRegistry,
        *,
        interval_s: float,
        tell: Callable[[News], None] = lambda _: None,
        loads: Callable[[], Mapping[str, int]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._listener = listener
        self._tell = tell
        self._leading = True
        self._pages: tuple[dict[str, str], dict[str, Vocabulary]] = ({}, {})
        self._gpu_pages: tuple[dict[str, str], dict[str, Vocabulary]] = ({}, {})
        """What to read where this worker leads: URLs and vocabularies by endpoint."""
        self._clock = clock
        self._wall_clock = wall_clock
        self._board = Board()
        self._known: frozenset[str] = frozenset()
        self._paged: frozenset[str] = frozenset()
        """Endpoints of which the fleet says where their page is."""
        self._pushing: set[str] = set()
        self._blind = False
        self._scraper = Scraper(
            lambda endpoint, readings: self._found(Heard(endpoint, PAGE, readings, clock())),
            lambda endpoint: self._found(Restarted(endpoint)),
            lambda endpoint, failures, _: self._found(Failed(endpoint, failures)),
            clock=clock,
            loads=loads or listener.in_flight,
            pacing=Pacing(fast_s=interval_s),
        )
        self._gpus = Scraper(
            lambda endpoint, readings: self._found(Heard(endpoint, GPU, readings, clock())),
            lambda _: None,
            clock=clock,
            pacing=Pacing(fast_s=GPU_EVERY_S),
        )
        self.push = Push(
            lambda endpoint, readings, at: self._found(Heard(endpoint, PUSH, readings, at)),
            lambda endpoint: self._found(Restarted(endpoint)),
            lambda endpoint: self._found(PushEnded(endpoint)),
            clock=clock,
        )
        self._caches = KvCollector(listener, registry)
        self._reports = Counts(
            "tidegate_picker_telemetry_load_reports",
            "Load reports in answers' headers (ORCA).",
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

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """Follow exactly the endpoints of these pools."""
        pages: dict[str, str] = {}
        gpu_pages: dict[str, str] = {}
        vocabularies: dict[str, Vocabulary] = {}
        gpus: dict[str, Vocabulary] = {}
        known: set[str] = set()
        for pool in pools.values():
            for endpoint in pool.endpoints:
                name = endpoint.key.id
                known.add(name)
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
        self._known, self._paged = frozenset(known), frozenset(pages)
        self._pages = (pages, vocabularies)
        self._gpu_pages = (gpu_pages, gpus)
        self._aim()
        self._caches.set_pools(pools)

    def lead(self, leading: bool) -> None:
        """Read the pages here, or leave that to another worker."""
        if leading != self._leading:
            self._leading = leading
            self._aim()

    def take(self, news: News) -> None:
        """Take what this worker or another one collected."""
        if isinstance(news, Heard):
            self._heard(*news)
        elif isinstance(news, Failed):
            if news.failures >= SILENT_AFTER and news.endpoint not in self._pushing:
                self._listener.silent(news.endpoint)
        elif isinstance(news, Restarted):
            self._board.clear(news.endpoint)
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
            tasks.create_task(self._watch())

    def reported(self, endpoint: str, headers: Sequence[tuple[str, str]]) -> None:
        """Take a load report out of an answer's headers (ORCA), where nothing else is fresh.

        A page or a push tells each model's numbers; a report does not say which model's it tells,
        so beside them it would count the same requests twice.
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
        self._found(Heard(endpoint, ORCA, (reading,), now))

    def look(self) -> int:
        """Count the endpoints whose numbers are stale, and say where all are."""
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
        """Return sources and their ages, for people."""
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
        """Return the endpoints that should tell their numbers."""
        return (self._paged | self._pushing) & self._known

    async def _watch(self) -> None:
        # What has just started is not yet lost.
        await asyncio.sleep(FRESH_S)
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def _heard(self, endpoint: str, source: str, readings: tuple[Reading, ...], at: float) -> None:
        if source == PUSH:
            self._pushing.add(endpoint)
        self._listener.observe(endpoint, self._board.put(endpoint, source, readings, at))

    def _found(self, news: News) -> None:
        self.take(news)
        self._tell(news)

    def _aim(self) -> None:
        if self._leading:
            self._scraper.set_targets(*self._pages)
            self._gpus.set_targets(*self._gpu_pages)
        else:
            self._scraper.set_targets({})
            self._gpus.set_targets({})
