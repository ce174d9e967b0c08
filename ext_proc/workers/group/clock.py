"""Moves the times of messages from another machine's monotonic clock to this one's. Pure.

Rules:

1. The difference of the clocks is the least of (time of receipt - time of sending) among the
   greetings of the last one to two ``WINDOW_S``: never less than the true one, and above it by the
   shortest way of that time. So clocks that run unequally are followed.
2. Every time that is used is moved: what happened at the sender appears later by that way at most.
3. What a member says counts for ``LONGEST_S`` at most: nothing happened earlier or is still to
   come, and no lease lasts longer.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Final

from ext_proc.routing.peers import LatencySample
from ext_proc.routing.state.leases import Leased
from ext_proc.routing.suspicion import CallerLeft, Died, Gone, SuspectRun
from ext_proc.telemetry.news import ReadingsUpdate
from ext_proc.workers.news import HeldLease, Looked

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.workers.records import Message

WINDOW_S: Final = 30.0
LONGEST_S: Final = 86_400.0
"""Longest duration of a fleet file, and so of a lease."""


class ClockOffset:
    """The difference between this machine's clock and a sender's; see the module's rules."""

    def __init__(self) -> None:
        self._least = self._before = inf
        self._began = -inf

    def note(self, sent: float, received: float) -> None:
        """Take a greeting.

        Args:
            sent: Seconds of the sender's clock.
            received: Seconds of this machine's clock.
        """
        if received - self._began >= WINDOW_S:
            self._before, self._least, self._began = self._least, inf, received
        self._least = min(self._least, received - sent)

    @property
    def seconds(self) -> float:
        """What is added to the sender's times; infinite before the first greeting."""
        return min(self._least, self._before)


def moved(message: Message, by: float, now: float) -> Message:
    """Return a message whose times are later by some seconds (rules 2, 3).

    Args:
        message: The message.
        by: What is added, seconds.
        now: Monotonic seconds of this machine.
    """
    move = _MOVES.get(type(message))
    return message if move is None else move(message, by, now)


def _past(at: float, by: float, now: float) -> float:
    return min(max(at + by, now - LONGEST_S), now)


def _event(message: Any, by: float, now: float) -> Any:
    return message._replace(at=_past(message.at, by, now))


def _sample(message: LatencySample, by: float, now: float) -> LatencySample:
    ticket, ended = message
    return LatencySample(ticket._replace(at=_past(ticket.at, by, now)), _past(ended, by, now))


def _lease(message: HeldLease | Leased, by: float, now: float) -> HeldLease | Leased:
    lease = message.lease
    expires = min(lease.expires + by, now + LONGEST_S)
    return message._replace(lease=lease._replace(expires=expires))


def _readings(message: ReadingsUpdate, by: float, now: float) -> ReadingsUpdate:
    readings = tuple([replace(each, at=_past(each.at, by, now)) for each in message.readings])
    return message._replace(readings=readings, at=_past(message.at, by, now))


def _looked(message: Looked, by: float, now: float) -> Looked:
    listing = message.listing
    if listing is None:
        return message
    return message._replace(listing=listing._replace(at=_past(listing.at, by, now)))


_MOVES: Final[dict[type, Callable[[Any, float, float], Message]]] = {
    **dict.fromkeys((Died, Gone, CallerLeft, SuspectRun), _event),
    **dict.fromkeys((HeldLease, Leased), _lease),
    LatencySample: _sample,
    ReadingsUpdate: _readings,
    Looked: _looked,
}
"""By kind of message with a time. Inserts count from their receipt (``Trials.follow``)."""
