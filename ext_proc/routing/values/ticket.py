"""Tickets: the charge of one pick, and how it ends."""

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
    """The stream was lost before the exchange ended as it should."""
    MOVED = "moved"
    """Another replica served; the charge went on there under a ticket of its own."""
    REMOVED = "removed"
    """The endpoint left while the request ran."""
    SHUTDOWN = "shutdown"


DONE: Final = Outcome.DONE  # see `ext_proc.exchange.state`

ABORTED: Final = Outcome.ABORTED

SHUTDOWN: Final = Outcome.SHUTDOWN


class Ticket(NamedTuple):
    """The charge of one pick; it is settled exactly once."""

    id: int
    endpoint: EndpointKey
    pool: str
    work: float
    """Estimated input tokens not cached, at least 1."""
    at: float
    prompted: bool = False
    """The request has a prompt, so ``work`` says how large it is."""
    drain_s: float | None = None
    """What stood before it by the replica's virtual clock; ``None`` = its duration teaches
    nothing."""
    ahead: int = 0
    """Our requests in flight on the replica when it came."""
