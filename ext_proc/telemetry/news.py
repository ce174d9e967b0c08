"""Telemetry that a worker replicates to its peers. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ext_proc.routing.values.reading import Reading

PAGE: Final = "page"
GPU: Final = "gpu"
PUSH: Final = "push"
ORCA: Final = "orca"
"""Sources of readings."""


class ReadingsUpdate(NamedTuple):
    """A source delivered readings of an endpoint."""

    endpoint: str
    source: str
    readings: tuple[Reading, ...]
    at: float
    """Time of the readings, monotonic seconds."""


class Restarted(NamedTuple):
    """An endpoint's process has restarted."""

    endpoint: str


class ScrapeFailed(NamedTuple):
    """An endpoint's page could not be read."""

    endpoint: str
    failures: int
    """Number of consecutive failures."""


class PushEnded(NamedTuple):
    """An endpoint has stopped pushing readings."""

    endpoint: str


TelemetryUpdate = ReadingsUpdate | Restarted | ScrapeFailed | PushEnded
