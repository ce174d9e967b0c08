"""The reporter: scrapes a replica's metrics page and pushes changes to the pickers.

Rules:

1. Nothing is reported for a scrape that failed; the pickers' readings then age out.
2. A report is sent when a reading changed, and every ``CONFIRM_S`` without a change.
3. Each picker has its own stream; one that is unreachable is retried with backoff and does not
   delay the others.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc
import structlog

from ext_proc.telemetry.pacing import Pacing
from ext_proc.telemetry.report import write
from ext_proc.telemetry.scrape import Scraper
from tidegate_api.telemetry.v1 import telemetry_pb2_grpc
from tidegate_common.backoff import Backoff
from tidegate_common.lost import why_lost
from tidegate_common.tls.channel import open_channel

if TYPE_CHECKING:
    from ext_proc.routing.values.reading import Reading
    from ext_proc.telemetry.report import Key
    from tidegate_common.tls.rpc import ClientTls

CONFIRM_S: Final = 0.5
"""Interval of reports without changes, seconds; pickers discard readings older than 2 s."""

_log = structlog.stdlib.get_logger("tidegate.reporter")


@dataclass(frozen=True, slots=True)
class ReporterOptions:
    """Options of the reporter."""

    endpoint: str
    """Id of the replica in the fleet file."""
    metrics: str
    """URL of the replica's metrics page."""
    pickers: tuple[str, ...]
    """``host:port`` of each picker."""
    interval_s: float = 0.05
    tls: ClientTls | None = None
    """How to connect to the pickers; ``None`` = without TLS."""


class MetricsReporter:
    """Scrapes one replica and reports to its pickers."""

    def __init__(self, options: ReporterOptions) -> None:
        self._options = options
        self._sample: CounterSample | None = None
        self._restarts = 0
        self._fresh = asyncio.Condition()
        self._notifications: set[asyncio.Task[None]] = set()
        self._scraper = Scraper(
            self._received,
            self._restarted,
            self._failed,
            pacing=Pacing(fast_s=options.interval_s, pages_per_s=1 / options.interval_s),
        )
        self._scraper.set_targets({options.endpoint: options.metrics})

    async def run(self) -> None:
        """Report until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._scraper.run())
            if self._options.tls is not None:
                tasks.create_task(self._options.tls.identity.follow())
            for picker in self._options.pickers:
                tasks.create_task(self._report_to(picker))

    def _restarted(self, _: str) -> None:
        self._restarts += 1

    def _received(self, _: str, readings: tuple[Reading, ...]) -> None:
        self._sample = CounterSample(time.monotonic(), readings, self._restarts)
        task = asyncio.ensure_future(self._notify())
        self._notifications.add(task)
        task.add_done_callback(self._notifications.discard)

    def _failed(self, _: str, consecutive: int, reason: str) -> None:
        if consecutive == 1:
            _log.warning("page_not_read", url=self._options.metrics, reason=reason)

    async def _notify(self) -> None:
        async with self._fresh:
            self._fresh.notify_all()

    async def _report_to(self, picker: str) -> None:
        backoff = Backoff(random.random)
        async with open_channel(picker, self._options.tls) as channel:
            stub: Any = telemetry_pb2_grpc.TelemetryStub(channel)
            while True:
                try:
                    await self._stream(stub, backoff)
                    reason = "the picker ended the stream"
                except grpc.aio.AioRpcError as error:
                    reason = why_lost(error.code().name, error.details())
                except asyncio.InvalidStateError:
                    reason = "the picker ended the stream"
                _log.warning("picker_lost", picker=picker, reason=reason)
                await asyncio.sleep(backoff.delay_s())

    async def _stream(self, stub: Any, backoff: Backoff) -> None:
        call, changes = stub.Report(), Changes()
        reported_at = float("-inf")
        last: CounterSample | None = None
        try:
            while not call.done():
                sample = await self._next(last)
                last = sample
                changed, now = changes.of(sample), time.monotonic()
                if not changed and now - reported_at < CONFIRM_S:
                    continue
                age = max(0.0, now - sample.at)
                await call.write(
                    write(
                        self._options.endpoint, age, changed.readings, changed.gone, sample.restarts
                    )
                )
                reported_at = now
                backoff.reset()
            status = await call.code()
            if status is not grpc.StatusCode.OK:
                raise grpc.aio.AioRpcError(
                    status,
                    await call.initial_metadata(),
                    await call.trailing_metadata(),
                    await call.details(),
                )
        finally:
            call.cancel()

    async def _next(self, last: CounterSample | None) -> CounterSample:
        async with self._fresh:
            while self._sample is None or self._sample is last:
                await self._fresh.wait()
            return self._sample


async def run(options: ReporterOptions) -> int:
    """Report until cancelled."""
    await MetricsReporter(options).run()
    return 0


@dataclass(frozen=True, slots=True)
class CounterSample:
    """Readings of one scrape of the replica."""

    at: float
    """Time of the scrape, monotonic seconds."""
    readings: tuple[Reading, ...]
    restarts: int
    """Number of restarts of the replica seen so far."""


class ChangedReadings(NamedTuple):
    """Readings that changed and keys that disappeared since the last report."""

    readings: tuple[Reading, ...]
    gone: tuple[Key, ...]

    def __bool__(self) -> bool:
        """Return whether anything changed."""
        return bool(self.readings or self.gone)


class Changes:
    """Readings sent on one stream; a reading that differs only in its time is unchanged."""

    def __init__(self) -> None:
        self._sent: dict[Key, Reading] = {}
        self._restarts = 0

    def of(self, sample: CounterSample) -> ChangedReadings:
        """Return the changes in ``sample`` and record its readings as sent."""
        if sample.restarts != self._restarts:
            # The picker drops all readings of a replica that restarted.
            self._sent.clear()
            self._restarts = sample.restarts
        timeless = {(each.model, each.version): replace(each, at=0.0) for each in sample.readings}
        changed = tuple(
            each
            for each in sample.readings
            if self._sent.get((each.model, each.version)) != timeless[each.model, each.version]
        )
        gone = tuple(key for key in self._sent if key not in timeless)
        self._sent = timeless
        return ChangedReadings(changed, gone)
