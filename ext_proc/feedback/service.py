"""Receives Envoy's access-log streams on the picker's own port.

Rules:

1. Invalid messages end their stream, and messages of more than `MAX_BYTES` are dropped; both are
   counted, and neither reaches the router.
2. Entries are applied as they arrive, in order; a stream waits for nothing else.
3. Of requests without a pick only those come that the proxy answered by itself. They are counted.
   So are not requests that left a hung replica for another one: a further entry tells their end.
4. After `SLICE` entries of a message the service yields to other tasks: Envoy sends about 24 at
   once, and decisions must not wait for all of them.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog
from google.protobuf.message import DecodeError

from ext_proc.feedback.entries import AttemptEntry
from ext_proc.feedback.fold import FOREIGN
from ext_proc.feedback.wire import (
    LEFT_HUNG,
    METHOD,
    MOVED_CAUSE,
    OTHER_CAUSE,
    SERVICE,
    entries_of,
    reply,
)
from ext_proc.observability.records import RequestRecords
from ext_proc.observability.traffic import TrafficCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.feedback.entries import Entry
    from ext_proc.feedback.fold import Feedback
    from ext_proc.feedback.metrics import FeedbackMetrics

MAX_BYTES: Final = 256 * 1024
"""Maximum bytes of one message; Envoy sends its buffer when it reaches 16 KiB."""
SLICE: Final = 8
"""Entries processed per iteration of the loop: about 60 µs."""

KINDS: Final = {"no-route": "client", OTHER_CAUSE: "local"}
"""Causes of answers without a pick that have another name as kinds of failures in traffic."""

LIMITS: Final = frozenset({"overflow", "rate-limited", "overloaded"})
"""Causes that are limits of the proxy: no replica failed, whether there was a pick or not."""

UNCOUNTED: Final = LIMITS | {MOVED_CAUSE}
"""Causes of entries that are no end of a request at a replica."""

_log = structlog.stdlib.get_logger("ext_proc.feedback")


class LogService:
    """``envoy.service.accesslog.v3.AccessLogService``.

    Args:
        feedback: Applies the entries.
        metrics: Counters to increment.
        traffic: Counts requests that have ended; ``None`` = they are not counted.
        records: Keeps how they ended; by default records of its own.
        clock: Monotonic seconds.
        wall_clock: Unix seconds.
    """

    def __init__(
        self,
        feedback: Feedback,
        metrics: FeedbackMetrics,
        traffic: TrafficCounts | None = None,
        records: RequestRecords | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._feedback = feedback
        self._metrics = metrics
        self._traffic = TrafficCounts() if traffic is None else traffic
        self._records = RequestRecords() if records is None else records
        self._clock = clock
        self._wall_clock = wall_clock

    def handler(self) -> Any:
        """Return the handler for a gRPC server."""
        stream: Any = grpc.stream_unary_rpc_method_handler(self.stream)
        return grpc.method_handlers_generic_handler(SERVICE, {METHOD: stream})

    async def stream(self, messages: Any, _: Any) -> bytes:
        """Read one stream until it ends (gRPC)."""
        self._metrics.streams += 1
        try:
            async for data in messages:
                await self.take(data)
        except DecodeError:
            self._metrics.dropped("garbled")
            _log.warning("log_stream_garbled")
        finally:
            self._metrics.streams -= 1
        return reply()

    async def take(self, data: bytes) -> None:
        """Apply one message, a slice per iteration of the loop.

        Raises:
            DecodeError: The bytes are not a message.
        """
        if len(data) > MAX_BYTES:
            self._metrics.dropped("too-large")
            return
        fold, lag, ended = self._feedback.take, self._metrics.lag, self._traffic.ended
        now, unix_now, records = self._clock(), self._wall_clock(), self._records
        left = SLICE
        for entry in entries_of(data):
            if not left:
                await asyncio.sleep(0)
                # Time has passed, and state that is kept by age must not get outdated times.
                now, unix_now = self._clock(), self._wall_clock()
                left = SLICE
            left -= 1
            if isinstance(entry, AttemptEntry):
                self._feedback.attempted(entry, now)
                records.attempted(entry.ticket, entry.attempt)
                continue
            if entry.cause and not self._had_pick(entry):
                continue
            outcome = fold(entry, now)
            if entry.final:
                lag(unix_now - entry.ended_unix_s)
                if outcome != FOREIGN:
                    if entry.cause in UNCOUNTED:
                        self._refused(entry)
                    else:
                        first_s, lasted_s = entry.first_at_s, entry.lasted_s
                        ended(entry.cluster, entry.served, outcome, first_s, lasted_s)
                    records.ended(entry, outcome, now)

    def _refused(self, entry: Entry) -> None:
        if entry.cause in LIMITS:
            self._traffic.refused(self._feedback.pool_of(entry.cluster), entry.cause)

    def _had_pick(self, entry: Entry) -> bool:
        """Count an answer of the proxy's own; return whether there was a pick."""
        if entry.cause in LEFT_HUNG.values():
            return True
        pool = self._feedback.pool_of(entry.cluster)
        self._metrics.proxied(pool, entry.cause)
        if not entry.picker:
            self._traffic.refused(pool, KINDS.get(entry.cause, entry.cause))
        return bool(entry.picker)
