"""What one picker has not been told yet. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ext_proc.routing.values.reading import Reading
    from ext_proc.telemetry.report import Key


@dataclass(frozen=True, slots=True)
class CounterSample:
    """One look at the replica."""

    at: float
    """Monotonic seconds."""
    readings: tuple[Reading, ...]
    restarts: int
    """Restarts seen so far."""


class ChangedReadings(NamedTuple):
    """The difference to what was told."""

    readings: tuple[Reading, ...]
    gone: tuple[Key, ...]

    def __bool__(self) -> bool:
        """Tell whether there is any."""
        return bool(self.readings or self.gone)


class Changes:
    """What one stream was told; a reading that differs in its time only is no news."""

    def __init__(self) -> None:
        self._told: dict[Key, Reading] = {}
        self._restarts = 0

    def of(self, sample: CounterSample) -> ChangedReadings:
        """Return what is new in a sample, which counts as told from now on."""
        if sample.restarts != self._restarts:
            # The picker forgets all at a restart.
            self._told.clear()
            self._restarts = sample.restarts
        timeless = {(each.model, each.version): replace(each, at=0.0) for each in sample.readings}
        changed = tuple(
            each
            for each in sample.readings
            if self._told.get((each.model, each.version)) != timeless[each.model, each.version]
        )
        gone = tuple(key for key in self._told if key not in timeless)
        self._told = timeless
        return ChangedReadings(changed, gone)
