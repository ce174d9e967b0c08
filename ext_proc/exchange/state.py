"""States of an exchange, and the error of an event that a state does not allow.

Enum members that are compared for each message are also module constants, here as in `events` and
in ``routing``: Python 3.11 takes 0.2 µs to look a member up in its enum, and an exchange compares
thirty.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class ExchangeState(Enum):
    """State of an exchange."""

    NEW = "new"
    WAITING = "waiting"
    """Waiting for the body, to decide on it."""
    QUEUED = "queued"
    """Waiting for a replica with room."""
    DECIDED = "decided"
    """Picked, refused or passed."""
    OVER = "over"


NEW: Final = ExchangeState.NEW
WAITING: Final = ExchangeState.WAITING
QUEUED: Final = ExchangeState.QUEUED
DECIDED: Final = ExchangeState.DECIDED
OVER: Final = ExchangeState.OVER


class IllegalEventError(Exception):
    """The state does not allow the event; nothing has changed."""


def illegal(event: object, state: ExchangeState) -> IllegalEventError:
    """Return the error of an event that the state does not allow."""
    return IllegalEventError(f"{type(event).__name__} in state {state.value}")
