"""Log entries, independent of Envoy's messages, as evidence for the law of blame. Pure.

Source: ``envoy/data/accesslog/v3/accesslog.proto``. A request has one final entry, entries while it
runs, and one for each attempt that failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.blame.evidence import Attempt, Ended

if TYPE_CHECKING:
    from ext_proc.blame.law import Effect
    from ext_proc.routing.values.pool import EndpointKey


class Usage(NamedTuple):
    """Token counts that an answer told; ``None`` = it did not tell this one."""

    prompt: int | None
    cached: int | None
    output: int | None
    model: str
    """As the answer names it; empty if it does not."""


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
    ended: Ended
    """What ended the last attempt."""
    read: bool
    """The replica of the last attempt was sent the request."""
    answered: bool
    """Status and gRPC status are the replica's."""
    final: bool
    """False for the entries that a long request writes while it runs."""
    first_byte_s: float | None
    """Seconds from the first byte to the replica to the first byte of its answer's body (to the
    headers of an error without one, or where the proxy cannot tell); ``None`` = not begun, or
    unknown."""
    answer_bytes: int
    ended_unix_s: float
    first_at_s: float | None = None
    """Seconds from the request's start to that byte."""
    last_at_s: float | None = None
    """Seconds from the request's start to the last byte received from the replica."""
    lasted_s: float = 0.0
    """Seconds from the request's start to this entry."""
    usage: Usage | None = None
    """``None`` = not told, or not asked for (`telemetry.usage`)."""
    delivered_at_s: float | None = None
    """Seconds from the request's start to its last byte from the client; ``None`` = the client has
    not sent all of it, or the request ended well, where it does not matter."""
    cause: str = ""
    """Why the proxy answered by itself, one of ``wire.CAUSES``; empty = it did not."""


class AttemptEntry(NamedTuple):
    """One failed attempt as the proxy saw it."""

    picker: str
    ticket: str
    cluster: str
    attempt: Attempt
    began_unix_s: float
    """When the attempt began."""
    lasted_s: float
    """Seconds from there to its end."""


class Hung(NamedTuple):
    """A request that stands on a replica which is found hung."""

    ticket_id: int
    read_before: bool
    """Another replica has read it before."""
    mute: bool
    """The replica does not answer our probes either."""


class Judged(NamedTuple):
    """What the law makes of an attempt, or of several good ones, for all workers."""

    pool: str
    endpoint: EndpointKey
    effect: Effect
    first_byte_s: float | None = None
    """For the conditions; ``None`` for a retried request, where it is meaningless. For ``SILENT``:
    the seconds without a first byte."""
    answer_s: float | None = None
    bytes_per_s: float | None = None
    answered: bool = False
    """A failure was an answer."""
    times: int = 1
    """Number of good responses that this record summarizes by their means."""
    origin: int = 0
    """The request's origin, where it matters; see ``ext_proc.blame.origins``."""
    client: int = 0
    """The request's client, where it is known."""


LEAST_SPAN_S: Final = 0.02
"""A response that took less time is no sample of the replica's speed."""


def attempt_of(entry: Entry) -> Attempt:
    """Return the last attempt of a request."""
    answered = entry.answered
    return Attempt(
        address=entry.served,
        ended=entry.ended,
        read=entry.read,
        answered=answered,
        began=answered and entry.answer_bytes > 0,
        status=entry.status if answered else 0,
        grpc_status=entry.grpc_status if answered else None,
    )


def answer_speed(entry: Entry) -> float | None:
    """Return the bytes per second of a complete response that took at least ``LEAST_SPAN_S``."""
    first_at_s, last_at_s = entry.first_at_s, entry.last_at_s
    if first_at_s is None or last_at_s is None or not entry.final:
        return None
    span = last_at_s - first_at_s
    return entry.answer_bytes / span if span >= LEAST_SPAN_S and entry.answer_bytes else None


def passed_over(entry: Entry) -> list[Attempt]:
    """Return the earlier attempts of a request as far as its final entry tells, which is a guess.

    ``override_host`` tries the picks in order, so the attempt before the last went to the pick
    before the last one used. How these ended is not known; where the last one reached no replica,
    the others did not either.
    """
    if entry.attempts <= 1 or not entry.picks:
        return []
    unreached = entry.ended is Ended.UNREACHED
    ended, read = (Ended.UNREACHED, False) if unreached else (Ended.BROKEN, None)
    tried = entry.picks.split(",", entry.attempts)[: entry.attempts - 1]
    return [
        Attempt(address, ended, read, answered=False, began=False, status=0)
        for address in tried
        if address != entry.served
    ]
