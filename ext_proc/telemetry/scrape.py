"""Reads the metrics pages of all replicas, each on its own clock and over a connection of its own.

Laws:
* Each replica has at most one page on the way, and waits for no other replica.
* A page costs at most ``timeout_s`` and ``max_bytes``, whatever the replica does: hangs, endless or
  huge pages, compressed ones, redirects and other things than metrics are failed scrapes.
* A failed scrape yields no reading; what was read before grows old where it is kept.
* A replica that was removed or replaced while its page was on the way is not reported.
* Restarts are seen by counters, see ``rates``, and are told before the readings.
* How often a replica is read is ``pacing``'s to say: often while it has requests in flight, and all
  of them together within a budget.
* An error inside a callback is a failed scrape of that replica and does not end the others.
* A page that is byte for byte the one before is not parsed again: only its age changes.
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

LOADS_EVERY_S: Final = 0.1
"""Who has requests in flight is looked up at most so often."""

MAX_ERROR_CHARS: Final = 200

KEPT_BYTES: Final = 65_536
"""A longer page is not kept to be compared with the next one."""

_JITTER: Final = 0.2
_PLAIN: Final = Vocabulary()
_NO_VOCABULARIES: Final[dict[str, Vocabulary]] = {}


@dataclass(slots=True)
class _Target:
    """One replica and what is known of its scrapes."""

    url: str
    client: PageClient
    last_ok: float | None = None
    failures: int = 0
    """Consecutive ones."""
    error: str | None = None
    """Of the last scrape; ``None`` where it went well."""
    vocabulary: Vocabulary = _PLAIN
    restarts: int = 0
    rates: Rates = field(default_factory=Rates)
    timer: asyncio.TimerHandle | None = None
    """Begins the next scrape."""
    waiting: asyncio.Future[bool] | None = None
    """Who waits for the scrape that goes on."""
    page: bytes = b""
    said: PageReadings | None = None
    """What the page before said."""


class Scraper:
    """Scrapes a changing set of replicas and hands on what they say."""

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
    ) -> None:
        """Prepare to scrape; ``run`` does it.

        Args:
            on_readings: Called with a replica's id and its readings, after each good scrape.
            on_restart: Called with a replica's id, before its readings, where counters fell.
            on_failure: Called with a replica's id, the number of consecutive failures and the
                reason, after each failed scrape.
            clock: Monotonic seconds; readings carry its value.
            jitter: A number in [0, 1), which spreads the scrapes by a fifth of the interval.
            loads: Returns the requests in flight by replica id; without it all count as loaded.
            pacing: How often a replica is read.
            timeout_s: Bound of one scrape.
            max_bytes: Bound of one page.
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
        self._targets: dict[str, _Target] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def set_targets(
        self,
        targets: Mapping[str, str],
        vocabularies: Mapping[str, Vocabulary] = _NO_VOCABULARIES,
    ) -> None:
        """Scrape exactly these replicas from now on.

        Args:
            targets: URL of the metrics page by replica id. A replica whose URL stays keeps what is
                known of it; one with another URL begins anew.
            vocabularies: What to read beyond the usual, by replica id.
        """
        self._looked_at = float("-inf")
        for endpoint in [
            known for known, target in self._targets.items() if targets.get(known) != target.url
        ]:
            self._stop(self._targets.pop(endpoint))
        for endpoint, url in targets.items():
            target = self._targets.get(endpoint)
            if target is None:
                client = PageClient(url, timeout_s=self._timeout_s, max_bytes=self._max_bytes)
                target = self._targets[endpoint] = _Target(url, client)
                self._start(endpoint, target)
            vocabulary = vocabularies.get(endpoint, _PLAIN)
            if vocabulary != target.vocabulary:
                target.vocabulary, target.page, target.said = vocabulary, b"", None

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
        """Scrape one replica now, within ``run``; return whether it went well.

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
        """Return per replica: url, age of the last good page (s), failures in a row, last error."""
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
        """Take what a fetch came to, and wait for the next."""
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
        if target.said is not None and page == target.page:
            same = tuple(replace(each, at=now) for each in target.said.readings)
            return PageReadings(now, same, target.said.counters)
        said = read_all(page.decode(), now, target.vocabulary)
        if len(page) <= KEPT_BYTES:
            target.page, target.said = page, said
        else:
            target.page, target.said = b"", None
        return said

    def _report(self, endpoint: str, target: _Target, page: PageReadings) -> None:
        rated = target.rates.take(page)
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
        """Return how long to wait before a replica's next scrape, after so many failures."""
        self._look()
        interval = self._pacing.interval_s(
            busy=self._busy is None or endpoint in self._busy,
            failures=failures,
            stretch=self._stretch,
        )
        return interval * (1 + _JITTER * (self._jitter() - 0.5))

    def _look(self) -> None:
        """Learn who has requests in flight, once for many replicas."""
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
