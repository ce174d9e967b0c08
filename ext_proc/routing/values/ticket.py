"""Tickets: the charge of one pick, and its outcome."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ext_proc.routing.values.pool import EndpointKey


class Outcome(StrEnum):
    """How a ticket ended."""

    DONE = "done"
    """The HTTP exchange ended; Envoy closed the stream."""
    ABORTED = "aborted"
    """The stream was lost before the exchange ended normally."""
    MOVED = "moved"
    """Another replica served the request; the charge continues there under a new ticket."""
    REMOVED = "removed"
    """The endpoint was removed while the request ran."""
    ABANDONED = "abandoned"
    """Not a request: work for a caller who had left, when it can have ended."""
    SHUTDOWN = "shutdown"
    """The picker stopped during the exchange."""
    UNSEEN = "unseen"
    """The proxy ended the stream after the pick, so when the request ended is unknown."""


DONE: Final = Outcome.DONE  # see `exchange.machine`

ABORTED: Final = Outcome.ABORTED

SHUTDOWN: Final = Outcome.SHUTDOWN

UNSEEN: Final = Outcome.UNSEEN


class Ticket(NamedTuple):
    """The charge of one pick, settled exactly once."""

    id: int
    endpoint: EndpointKey
    pool: str
    work: float
    """Estimated uncached input tokens, at least 1."""
    at: float
    """When the request was sent, monotonic seconds."""
    prompted: bool = False
    """The request has a prompt, so ``work`` reflects its size."""
    drain_s: float | None = None
    """Seconds of prefill before the request by the replica's virtual clock; ``None`` = its duration
    is not learned from."""
    ahead: int = 0
    """Requests in flight on the replica when the request was sent."""
    coming: float = 0.0
    """Tokens that ``work`` leaves out as cached, but that other prompts were not known to have
    computed when the request was sent."""
    kind: str | None = None
    """Model of the requests whose duration is compared with this one's; ``None`` = with none, as of
    streams that their clients keep open and of requests that moved."""
    most: int = 0
    """Most tokens of an answer that it asks for; 0 = it sets no bound, or is not known to."""
    model: str | None = None
    """Model as which it counts against limits; empty = not known, ``None`` = it counts against
    none, as streams that their clients keep open."""
