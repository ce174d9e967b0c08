"""All telemetry of a picker: sources in, one merged view per endpoint to the router.

Laws:
* What a source says reaches the router at once, merged with what the others said (``board``).
* A replica is called silent only where no source tells of it any more.
* When nothing is heard of any endpoint, routing goes on by the ledger; that is logged once, and so
  is its end.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog
from prometheus_client import Gauge

from ext_proc.routing.roster import FRESH_S
from ext_proc.telemetry.board import Board
from ext_proc.telemetry.dialects import Vocabulary
from ext_proc.telemetry.pacing import Pacing
from ext_proc.telemetry.push import Push
from ext_proc.telemetry.scrape import Scraper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from prometheus_client import CollectorRegistry

    from ext_proc.routing.types import Pool, Reading

SILENT_AFTER: Final = 2
"""Scrapes in a row that fail before a replica counts as silent; one may be a hiccup."""
GPU_EVERY_S: Final = 1.0
LOOK_EVERY_S: Final = 0.5
PAGE: Final = "page"
GPU: Final = "gpu"
PUSH: Final = "push"

_log = structlog.stdlib.get_logger("ext_proc.telemetry")


class Listener(Protocol):
    """The router, as far as telemetry goes."""

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
        clock: Monotonic seconds.
        wall_clock: Unix seconds.
    """

    def __init__(
        self,
        listener: Listener,
        registry: CollectorRegistry,
        *,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._wall_clock = wall_clock
        self._board = Board()
        self._known: frozenset[str] = frozenset()
        self._paged: frozenset[str] = frozenset()
        """Endpoints of which the fleet says where their page is."""
        self._pushing: set[str] = set()
        self._blind = False
        self._scraper = Scraper(
            lambda endpoint, readings: self._heard(endpoint, PAGE, readings, clock()),
            self._restarted,
            self._failed,
            clock=clock,
            loads=listener.in_flight,
            pacing=Pacing(fast_s=interval_s),
        )
        self._gpus = Scraper(
            lambda endpoint, readings: self._heard(endpoint, GPU, readings, clock()),
            lambda _: None,
            clock=clock,
            pacing=Pacing(fast_s=GPU_EVERY_S),
        )
        self.push = Push(
            lambda endpoint, readings, at: self._heard(endpoint, PUSH, readings, at),
            self._restarted,
            self._push_ended,
            clock=clock,
        )
        self._stale = Gauge(
            "tidegate_picker_telemetry_stale_endpoints",
            f"Endpoints that should tell their numbers and have not for {FRESH_S:g} s.",
            registry=registry,
        )
        Gauge(
            "tidegate_picker_telemetry_endpoints",
            "Endpoints that should tell their numbers.",
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
        self._scraper.set_targets(pages, vocabularies)
        self._gpus.set_targets(gpu_pages, gpus)

    async def run(self) -> None:
        """Collect until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._scraper.run())
            tasks.create_task(self._gpus.run())
            tasks.create_task(self._watch())

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

    def _restarted(self, endpoint: str) -> None:
        self._board.clear(endpoint)
        self._listener.restarted(endpoint, self._wall_clock())

    def _failed(self, endpoint: str, consecutive: int, _reason: str) -> None:
        if consecutive >= SILENT_AFTER and endpoint not in self._pushing:
            self._listener.silent(endpoint)

    def _push_ended(self, endpoint: str) -> None:
        self._pushing.discard(endpoint)
        self._board.drop(endpoint, PUSH)
