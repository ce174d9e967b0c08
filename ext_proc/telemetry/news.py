"""What the collectors of one worker tell the others of its machine. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ext_proc.routing.values.reading import Reading


class Heard(NamedTuple):
    """An endpoint said something."""

    endpoint: str
    source: str
    readings: tuple[Reading, ...]
    at: float
    """The time that the readings speak of, monotonic seconds."""


class Restarted(NamedTuple):
    """An endpoint's process is a new one."""

    endpoint: str


class Failed(NamedTuple):
    """An endpoint's page could not be read."""

    endpoint: str
    failures: int
    """In a row."""


class PushEnded(NamedTuple):
    """An endpoint that pushed its readings does so no more."""

    endpoint: str


News = Heard | Restarted | Failed | PushEnded
