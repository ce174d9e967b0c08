"""Listings: which models one replica has, in which state, as it told at one moment."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

MAX_ROWS: Final = 2048
"""Most rows of a listing; a longer one is cut, and what it does not list is unknown then."""
OWN_MODEL: Final = "the engine's own model"
"""Reason of a model that an engine serves as long as it lives: it loads and unloads only adapters,
so a 404 to a request for it is about something else."""
MAX_REASON: Final = 120
"""Most characters of a reason."""


class PlacementState(StrEnum):
    """State of a model on a replica; one that is not known is ``None``."""

    READY = "READY"
    LOADING = "LOADING"
    UNAVAILABLE = "UNAVAILABLE"


class Row(NamedTuple):
    """One version of a model on a replica."""

    model: str
    version: str
    """Empty if the replica names none."""
    state: PlacementState
    reason: str = ""
    """Why it is not READY, as the replica says it; `OWN_MODEL` of one that is."""


class Listing(NamedTuple):
    """What a replica has."""

    at: float
    """When it was asked, monotonic seconds."""
    rows: tuple[Row, ...]
    whole: bool = True
    """What is not listed is not there; else it is unknown."""

    def cut(self) -> Listing:
        """Return the listing within its bound."""
        if len(self.rows) <= MAX_ROWS:
            return self
        return Listing(self.at, self.rows[:MAX_ROWS], whole=False)
