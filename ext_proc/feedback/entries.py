"""One log entry in our own words, and what it says of the replica. Pure.

Source: ``envoy/data/accesslog/v3/accesslog.proto``; statuses as Triton uses them: 400 and 404 for
what a client did wrong, 500 for a failed execution but also for malformed JSON, 503 for a full
queue.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ext_proc.routing.values.pool import EndpointKey


class Entry(NamedTuple):
    """One request as the proxy saw it."""

    picker: str
    """Who picked; empty = nobody."""
    ticket: str
    """Empty where the pick was not charged."""
    unreadable: bool
    """The picker could not read the body, so an error may be the client's."""
    cluster: str
    served: str | None
    """``ip:port`` of the last attempt; ``None`` = the proxy answered by itself."""
    picks: str
    """The pick and its fallbacks, ``ip:port[,ip:port...]``; empty where there was one attempt."""
    attempts: int
    status: int
    """HTTP status sent to the client; 0 = none yet."""
    grpc_status: int | None
    broken: bool
    """The connection to the replica failed, broke or timed out."""
    left: bool
    """The client went away, or stalled."""
    shed: bool
    """The proxy refused by its own limits."""
    final: bool
    """False for the entries that a long request writes while it runs."""
    first_byte_s: float | None
    """From the first byte to the replica to the first byte from it."""
    answer_bytes: int
    ended_unix_s: float
    first_at_s: float | None = None
    """From the request's start to the answer's first byte."""
    last_at_s: float | None = None
    """The same to the last byte from the replica so far."""
    lasted_s: float = 0.0
    """From the request's start to this entry."""


class Verdict(StrEnum):
    """What one attempt says of its replica."""

    GOOD = "good"
    CLIENT = "client"
    """The request was wrong; the replica said so."""
    ERROR = "error"
    """The replica answered that it failed."""
    BROKEN = "broken"
    """The replica did not answer to the end."""
    LEFT = "left"
    """The client did not wait; nothing is known of the replica."""
    LOCAL = "local"
    """The proxy answered; no replica was involved."""


GOOD: Final = Verdict.GOOD
LOCAL: Final = Verdict.LOCAL
"""Read at each entry: looking a member up at its class takes 0.1 µs."""


class Judged(NamedTuple):
    """What a final entry, or some good ones, say of one replica, for all workers of a machine."""

    pool: str
    endpoint: EndpointKey
    verdict: Verdict
    first_byte_s: float | None = None
    """For the conditions; of a retried request it says nothing."""
    answer_s: float | None = None
    bytes_per_s: float | None = None
    began: bool = False
    """An answer had begun."""
    times: int = 1
    """Good answers that this says of, by their means."""


EARLY_EVERY_S: Final = 1.0
"""A request that runs writes an entry so often, counted from its start."""
LEAST_SPAN_S: Final = 0.02
"""An answer that came in less time says nothing of the replica's speed."""
_SERVER_ERRORS: Final = frozenset({500, 502, 503, 504})
FIRST_ERROR: Final = 400
"""HTTP statuses from here on are errors."""
_GRPC_SERVER_ERRORS: Final = frozenset({2, 13, 14})
"""UNKNOWN, INTERNAL, UNAVAILABLE."""


def judge(entry: Entry) -> Verdict:
    """Say what the last attempt of a final entry tells of its replica."""
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
    """Return the time to the first byte, once per request: with its first entry after that byte.

    ``None`` where nothing came yet, an earlier entry had it, or a retry makes it meaningless.
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
    """Return the bytes per second of a whole answer that took long enough to tell."""
    first_at_s, last_at_s = entry.first_at_s, entry.last_at_s
    if first_at_s is None or last_at_s is None or not entry.final:
        return None
    span = last_at_s - first_at_s
    return entry.answer_bytes / span if span >= LEAST_SPAN_S and entry.answer_bytes else None


def passed_over(entry: Entry) -> list[str]:
    """Return the addresses on which earlier attempts failed.

    ``override_host`` walks the picks in their order, so the attempt before the last was at the pick
    before the last one used.
    """
    if entry.attempts <= 1 or not entry.picks:
        return []
    tried = entry.picks.split(",", entry.attempts)[: entry.attempts - 1]
    return [address for address in tried if address != entry.served]
