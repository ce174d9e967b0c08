"""A log entry, independent of Envoy's messages, and its verdict on the replica. Pure.

Source: ``envoy/data/accesslog/v3/accesslog.proto``. Statuses as Triton uses them: 400 and 404 for a
client's mistakes, 500 for a failed execution but also for malformed JSON, 503 for a full queue.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ext_proc.routing.values.pool import EndpointKey


class Entry(NamedTuple):
    """One request as the proxy saw it."""

    picker: str
    """Id of the picker that decided; empty = none."""
    ticket: str
    """Empty if the pick was not charged."""
    unreadable: bool
    """The picker could not read the body, so an error may be the client's fault."""
    cluster: str
    served: str | None
    """``ip:port`` of the last attempt; ``None`` = the proxy answered by itself."""
    picks: str
    """The pick and its fallbacks, ``ip:port[,ip:port...]``; empty if there was one attempt."""
    attempts: int
    status: int
    """HTTP status sent to the client; 0 = none yet."""
    grpc_status: int | None
    broken: bool
    """The connection to the replica failed, broke or timed out."""
    left: bool
    """The client disconnected or stalled."""
    shed: bool
    """The proxy refused the request by its own limits."""
    final: bool
    """False for the entries that a long request writes while it runs."""
    first_byte_s: float | None
    """Seconds from the first byte to the replica to the first byte from it."""
    answer_bytes: int
    ended_unix_s: float
    first_at_s: float | None = None
    """Seconds from the request's start to the response's first byte."""
    last_at_s: float | None = None
    """Seconds from the request's start to the last byte received from the replica."""
    lasted_s: float = 0.0
    """Seconds from the request's start to this entry."""


class Verdict(StrEnum):
    """Verdict of one attempt on its replica."""

    GOOD = "good"
    CLIENT = "client"
    """The replica rejected the request as wrong."""
    ERROR = "error"
    """The replica reported its own failure."""
    BROKEN = "broken"
    """The replica did not complete its response."""
    LEFT = "left"
    """The client did not wait; nothing is known about the replica."""
    LOCAL = "local"
    """The proxy answered; no replica was involved."""


GOOD: Final = Verdict.GOOD
LOCAL: Final = Verdict.LOCAL
"""Constants, because every entry needs them: looking up an enum member takes 0.1 µs."""


class Judged(NamedTuple):
    """Verdict of a final entry, or of several good ones, on one replica, for all workers."""

    pool: str
    endpoint: EndpointKey
    verdict: Verdict
    first_byte_s: float | None = None
    """For the conditions; ``None`` for a retried request, where it is meaningless."""
    answer_s: float | None = None
    bytes_per_s: float | None = None
    began: bool = False
    """A response had begun."""
    times: int = 1
    """Number of good responses that this record summarizes by their means."""


EARLY_EVERY_S: Final = 1.0
"""Interval at which a running request writes entries, counted from its start."""
LEAST_SPAN_S: Final = 0.02
"""A response that took less time is no sample of the replica's speed."""
_SERVER_ERRORS: Final = frozenset({500, 502, 503, 504})
FIRST_ERROR: Final = 400
"""HTTP statuses from here on are errors."""
_GRPC_SERVER_ERRORS: Final = frozenset({2, 13, 14})
"""UNKNOWN, INTERNAL, UNAVAILABLE."""


def judge(entry: Entry) -> Verdict:
    """Return the verdict of a final entry's last attempt on its replica."""
    if entry.served is None or entry.shed:
        return LOCAL
    if entry.left:
        return Verdict.LEFT
    if entry.broken:
        return Verdict.BROKEN
    status, grpc_status = entry.status, entry.grpc_status
    if status < FIRST_ERROR and not grpc_status:
        return GOOD
    if status in _SERVER_ERRORS or grpc_status in _GRPC_SERVER_ERRORS:
        return Verdict.CLIENT if entry.unreadable else Verdict.ERROR
    return Verdict.CLIENT


def answer_time(entry: Entry) -> float | None:
    """Return the time to the first byte, once per request: with the first entry after that byte.

    ``None`` if no byte has arrived, an earlier entry reported it, or a retry makes it meaningless.
    """
    first_byte_s, first_at_s, lasted_s = entry.first_byte_s, entry.first_at_s, entry.lasted_s
    if entry.attempts > 1 or first_byte_s is None or first_at_s is None:
        return None
    if entry.final:
        fresh = int(lasted_s / EARLY_EVERY_S) == int(first_at_s / EARLY_EVERY_S)
    else:
        fresh = lasted_s - first_at_s <= EARLY_EVERY_S
    return first_byte_s if fresh else None


def answer_speed(entry: Entry) -> float | None:
    """Return the bytes per second of a complete response that took at least ``LEAST_SPAN_S``."""
    first_at_s, last_at_s = entry.first_at_s, entry.last_at_s
    if first_at_s is None or last_at_s is None or not entry.final:
        return None
    span = last_at_s - first_at_s
    return entry.answer_bytes / span if span >= LEAST_SPAN_S and entry.answer_bytes else None


def passed_over(entry: Entry) -> list[str]:
    """Return the addresses on which earlier attempts failed.

    ``override_host`` tries the picks in order, so the attempt before the last went to the pick
    before the last one used.
    """
    if entry.attempts <= 1 or not entry.picks:
        return []
    tried = entry.picks.split(",", entry.attempts)[: entry.attempts - 1]
    return [address for address in tried if address != entry.served]
