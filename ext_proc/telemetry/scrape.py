"""Reads the metrics pages of all replicas, each on its own schedule and its own connection.

Rules:

1. Each replica has at most one fetch under way, and waits for no other replica.
2. A page costs at most ``timeout_s`` and ``max_bytes``, whatever the replica does: hangs, endless,
   huge or compressed pages, redirects and responses that are not metrics are failed scrapes.
3. A failed scrape yields no reading; earlier readings age where they are kept.
4. A replica that was removed or replaced during its fetch is not reported.
5. Restarts are detected by counters, see ``rates``, and are reported before the readings.
6. ``pacing`` decides how often a replica is read: often while it has requests in flight, and all of
   them together within a budget.
7. An error in a callback is a failed scrape of that replica and does not end the others.
8. A page that is byte for byte equal to the one before is not parsed again: only its age changes.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from ext_proc.telemetry.dialects import PageReadings, Vocabulary, read_all
from ext_proc.telemetry.pacing import Pacing
from ext_proc.telemetry.page_client import PageClient
from ext_proc.telemetry.rates import Rates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ext_proc.routing.values.reading import Reading
    from tidegate_common.upstream.contexts import ReplicaContexts, ReplicaTls

LOADS_EVERY_S: Final = 0.1
"""Minimum seconds between two lookups of the requests in flight."""

MAX_ERROR_CHARS: Final = 200

KEPT_BYTES: Final = 65_536
"""Longer pages are not kept for the comparison with the next one."""

_JITTER: Final = 0.2
_PLAIN: Final = Vocabulary()
_NO_VOCABULARIES: Final[dict[str, Vocabulary]] = {}
_NO_TLS: Final[dict[str, ReplicaTls]] = {}


@dataclass(slots=True)
class _Target:
    """One replica and the state of its scrapes."""

    url: str
    client: PageClient
    last_ok: float | None = None
    failures: int = 0
    """Consecutive failures."""
    error: str | None = None
    """Error of the last scrape; ``None`` if it succeeded."""
    vocabulary: Vocabulary = _PLAIN
    restarts: int = 0
    rates: Rates = field(default_factory=Rates)
    timer: asyncio.TimerHandle | None = None
    """Starts the next scrape."""
    waiting: asyncio.Future[bool] | None = None
    """Completed when the current scrape ends, with whether it succeeded."""
    page: bytes = b""
    parsed: PageReadings | None = None
    """Parsed content of the previous page."""
    tls: ReplicaTls | None = None


class Scraper:
    """Scrapes a changing set of replicas and reports their readings."""

    def __init__(
        self,
        on_readings: Callable[[str, tuple[Reading, ...]], None],
        on_restart: Callable[[str], None],
        on_failure: Callable[[str, int, str], None] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        loads: Callable[[], Mapping[str, int]] | None = None,
        pacing: Pacing | None = None,
        timeout_s: float = 1.0,
        max_bytes: int = 4 * 2**20,
        contexts: ReplicaContexts | None = None,
    ) -> None:
        """Prepare to scrape; ``run`` starts it.

        Args:
            on_readings: Called with a replica's id and its readings, after each good scrape.
            on_restart: Called with a replica's id, before its readings, if counters fell.
            on_failure: Called with a replica's id, the number of consecutive failures and the
                reason, after each failed scrape.
            clock: Monotonic seconds; readings carry its value.
            jitter: Returns a number in [0, 1), which spreads scrapes by a fifth of the interval.
            loads: Returns the requests in flight by replica id; without it all count as loaded.
            pacing: Decides how often a replica is read.
            timeout_s: Bound of one scrape.
            max_bytes: Bound of one page.
            contexts: TLS contexts of the process.
        """
        self._on_readings = on_readings
        self._on_restart = on_restart
        self._on_failure = on_failure
        self._clock = clock
        self._jitter = jitter
        self._loads = loads
        self._pacing = pacing or Pacing()
        self._busy: frozenset[str] | None = None
        self._stretch = 1.0
        self._looked_at = float("-inf")
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._contexts = contexts
        self._targets: dict[str, _Target] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def set_targets(
        self,
        targets: Mapping[str, str],
        vocabularies: Mapping[str, Vocabulary] = _NO_VOCABULARIES,
        tls: Mapping[str, ReplicaTls] = _NO_TLS,
    ) -> None:
        """Scrape exactly these replicas from now on.

        Args:
            targets: URL of the metrics page by replica id. A replica keeps its state while its URL
                stays; one with another URL or other TLS starts anew.
            vocabularies: Further series to read, by replica id.
            tls: TLS of replicas whose page is read over https, by replica id.
        """
        self._looked_at = float("-inf")
        for endpoint in [
            known
            for known, target in self._targets.items()
            if (targets.get(known), tls.get(known)) != (target.url, target.tls)
        ]:
            self._stop(self._targets.pop(endpoint))
        for endpoint, url in targets.items():
            target = self._targets.get(endpoint)
            if target is None:
                client = PageClient(
                    url,
                    timeout_s=self._timeout_s,
                    max_bytes=self._max_bytes,
                    tls=tls.get(endpoint),
                    contexts=self._contexts,
                )
                target = _Target(url, client, tls=tls.get(endpoint))
                self._targets[endpoint] = target
                self._start(endpoint, target)
            vocabulary = vocabularies.get(endpoint, _PLAIN)
            if vocabulary != target.vocabulary:
                target.vocabulary, target.page, target.parsed = vocabulary, b"", None

    async def run(self) -> None:
        """Scrape until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            for endpoint, target in self._targets.items():
                self._start(endpoint, target)
            await self._loop.create_future()
        finally:
            self._loop = None
            for target in self._targets.values():
                self._stop(target)

    async def scrape_once(self, endpoint: str) -> bool:
        """Scrape one replica now, while ``run`` is running; return whether it succeeded.

        Raises:
            RuntimeError: ``run`` is not running.
        """
        if self._loop is None:
            raise RuntimeError("Scraper.run is not running")
        target = self._targets.get(endpoint)
        if target is None:
            return False
        target.waiting = self._loop.create_future()
        self._begin(endpoint, target)
        return await target.waiting

    def state(self) -> dict[str, dict[str, object]]:
        """Return per replica: URL, age of the last page (s), consecutive failures, last error."""
        now = self._clock()
        return {
            endpoint: {
                "url": target.url,
                "last_ok_age_s": None if target.last_ok is None else now - target.last_ok,
                "consecutive_failures": target.failures,
                "last_error": target.error,
                "restarts": target.restarts,
            }
            for endpoint, target in self._targets.items()
        }

    def _start(self, endpoint: str, target: _Target) -> None:
        if self._loop is not None:
            pause = self._pacing.fast_s * self._jitter()
            target.timer = self._loop.call_later(pause, self._begin, endpoint, target)

    def _stop(self, target: _Target) -> None:
        if target.timer is not None:
            target.timer.cancel()
        target.client.close()
        self._over(target, good=False)

    def _begin(self, endpoint: str, target: _Target) -> None:
        if target.timer is not None:
            target.timer.cancel()
            target.timer = None
        target.client.get(partial(self._took, endpoint, target))

    def _took(self, endpoint: str, target: _Target, result: bytes | Exception) -> None:
        """Process the result of a fetch and schedule the next."""
        good = False
        try:
            if isinstance(result, Exception):
                self._failed(endpoint, target, _reason(result, self._timeout_s))
            else:
                self._report(endpoint, target, self._read(target, result))
                good = True
        except ValueError as error:
            self._failed(endpoint, target, _reason(error, self._timeout_s))
        except Exception as error:  # noqa: BLE001 - a callback's bug must not end telemetry
            self._failed(endpoint, target, f"internal error: {error!r}")
        self._over(target, good=good)
        if self._loop is not None and self._targets.get(endpoint) is target:
            pause = self.pause_s(endpoint, target.failures)
            target.timer = self._loop.call_later(pause, self._begin, endpoint, target)

    def _over(self, target: _Target, *, good: bool) -> None:
        waiting, target.waiting = target.waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(good)

    def _read(self, target: _Target, page: bytes) -> PageReadings:
        now = self._clock()
        if target.parsed is not None and page == target.page:
            same = tuple(replace(each, at=now) for each in target.parsed.readings)
            return PageReadings(now, same, target.parsed.counters)
        parsed = read_all(page.decode(), now, target.vocabulary)
        if len(page) <= KEPT_BYTES:
            target.page, target.parsed = page, parsed
        else:
            target.page, target.parsed = b"", None
        return parsed

    def _report(self, endpoint: str, target: _Target, page: PageReadings) -> None:
        rated = target.rates.take(page, kept=target.client.kept)
        if rated.restarted:
            target.restarts += 1
            self._on_restart(endpoint)
        self._on_readings(endpoint, rated.readings)
        target.last_ok = self._clock()
        target.failures = 0
        target.error = None

    def _failed(self, endpoint: str, target: _Target, reason: str) -> None:
        target.failures += 1
        target.error = reason[:MAX_ERROR_CHARS]
        if self._on_failure is not None and self._targets.get(endpoint) is target:
            with suppress(Exception):  # the failure itself is already in the state
                self._on_failure(endpoint, target.failures, target.error)

    def pause_s(self, endpoint: str, failures: int) -> float:
        """Return the seconds until a replica's next scrape, after this many failures."""
        self._look()
        interval = self._pacing.interval_s(
            busy=self._busy is None or endpoint in self._busy,
            failures=failures,
            stretch=self._stretch,
        )
        return interval * (1 + _JITTER * (self._jitter() - 0.5))

    def _look(self) -> None:
        """Refresh which replicas have requests in flight, once for many replicas."""
        now = self._clock()
        if now - self._looked_at < LOADS_EVERY_S:
            return
        self._looked_at = now
        busy = len(self._targets)
        if self._loads is not None:
            loads = self._loads()
            self._busy = frozenset(name for name in self._targets if loads.get(name))
            busy = len(self._busy)
        self._stretch = self._pacing.stretch(busy, len(self._targets) - busy)


def _reason(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no page within {timeout_s:g} s"
    return str(error) or type(error).__name__
