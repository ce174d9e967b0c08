"""Difference between a replica's readings and those last sent on a stream. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ext_proc.routing.values.reading import Reading
    from ext_proc.telemetry.report import Key


@dataclass(frozen=True, slots=True)
class CounterSample:
    """Readings of one scrape of the replica."""

    at: float
    """Time of the scrape, monotonic seconds."""
    readings: tuple[Reading, ...]
    restarts: int
    """Number of restarts of the replica seen so far."""


class ChangedReadings(NamedTuple):
    """Readings that changed and keys that disappeared since the last report."""

    readings: tuple[Reading, ...]
    gone: tuple[Key, ...]

    def __bool__(self) -> bool:
        """Return whether anything changed."""
        return bool(self.readings or self.gone)


class Changes:
    """Readings sent on one stream; a reading that differs only in its time is unchanged."""

    def __init__(self) -> None:
        self._sent: dict[Key, Reading] = {}
        self._restarts = 0

    def of(self, sample: CounterSample) -> ChangedReadings:
        """Return the changes in ``sample`` and record its readings as sent."""
        if sample.restarts != self._restarts:
            # The picker drops all readings of a replica that restarted.
            self._sent.clear()
            self._restarts = sample.restarts
        timeless = {(each.model, each.version): replace(each, at=0.0) for each in sample.readings}
        changed = tuple(
            each
            for each in sample.readings
            if self._sent.get((each.model, each.version)) != timeless[each.model, each.version]
        )
        gone = tuple(key for key in self._sent if key not in timeless)
        self._sent = timeless
        return ChangedReadings(changed, gone)
