"""The traffic book: an hour of requests by variant and by endpoint. Pure.

Rules:

1. Only variants and endpoints of the fleet in force are counted, and the pool ``""`` for requests
   that were refused before their pool was known. At most ``MAX_VARIANTS`` variants and
   ``MAX_ENDPOINTS`` endpoints have a series.
2. A variant has slots of ``SHORT_S`` for a minute, and slots of ``LONG_S`` for an hour: at most
   300 kB of histograms. An endpoint has slots of ``SHORT_S`` for a minute and of ``COARSE_S`` for
   an hour, without histograms: at most 8 kB.
3. What a report adds ended since the report before it. Where that is longer ago than ``LATE_S``, as
   after a lost stream, it counts in the hour only: in a short slot it would look like a burst.
4. A rate is over ``WINDOW`` short slots, of which the last one has only begun; or since the book
   was begun, if that is shorter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate_common.histogram import quantile
from xds_server.applications.traffic.picker_runs import Counted, Key, PickerRuns
from xds_server.applications.traffic.request_counts import NOTHING, RequestCounts, since
from xds_server.applications.traffic.time_slots import TimeSlots

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

SHORT_S: Final = 5.0
LONG_S: Final = 60.0
LONG_SLOTS: Final = 60
COARSE_S: Final = 600.0
COARSE_SLOTS: Final = 6
LATE_S: Final = 15.0
WINDOW: Final = 12
"""Short slots of a rate: a minute."""
MAX_VARIANTS: Final = 256
MAX_ENDPOINTS: Final = 65_536
NOWHERE: Final[Key] = ("", "")
"""Requests whose pool was not known."""
SERVICE_KINDS: Final = frozenset({"error", "broken", "unreached", "timeout", "local"})
"""Kinds that are failures of the service; ``client``, ``left`` and ``gave-up`` are callers'."""


class RecentTraffic(NamedTuple):
    """A series over the last minute."""

    sums: RequestCounts
    seconds: float
    """The time that the counts cover."""

    @property
    def per_second(self) -> float:
        """Requests per second."""
        return self.sums.requests / self.seconds

    @property
    def failed(self) -> int:
        """Requests that failed by a fault of the service."""
        return sum(n for kind, n in self.sums.failed.items() if kind in SERVICE_KINDS)

    @property
    def gave_up(self) -> int:
        """Requests whose callers left before an answer began."""
        return self.sums.failed.get("gave-up", 0)

    def first_byte_s(self, share: float) -> float | None:
        """Return a quantile of the time to the first byte in seconds, if there is any."""
        return quantile(self.sums.first_byte, share)

    def duration_s(self, share: float) -> float | None:
        """Return a quantile of the duration in seconds, if there is any."""
        return quantile(self.sums.duration, share)


class TrafficBook:
    """The traffic of the fleet; see the module's rules.

    Args:
        names: Returns the variants (pool and name; the empty name stands for the pool) and the
            endpoints (pool and id) of the fleet in force.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        names: Callable[[], tuple[Collection[Key], Collection[Key]]],
        clock: Callable[[], float],
    ) -> None:
        self._names = names
        self._clock = clock
        self._began = clock()
        self._runs = PickerRuns()
        self._variants: dict[Key, tuple[TimeSlots, TimeSlots]] = {}
        self._endpoints: dict[Key, tuple[TimeSlots, TimeSlots]] = {}
        self._known: tuple[Collection[Key], Collection[Key]] | None = None

    def fleet_changed(self) -> None:
        """Drop the series of variants and endpoints that are gone, before the next report."""
        self._known = None

    def take(self, picker: str, counted: Counted) -> None:
        """Count a picker's report."""
        now = self._clock()
        variants, endpoints = self._in_fleet()
        counted = counted._replace(
            variants={k: v for k, v in counted.variants.items() if k == NOWHERE or k in variants},
            endpoints={k: v for k, v in counted.endpoints.items() if k in endpoints},
        )
        risen = self._runs.take(picker, counted, now)
        timely = risen.over_s <= LATE_S
        for key, sums in risen.variants.items():
            series = self._variants.get(key)
            if series is None:
                if len(self._variants) >= MAX_VARIANTS:
                    continue
                series = self._variants[key] = (
                    TimeSlots(SHORT_S, WINDOW),
                    TimeSlots(LONG_S, LONG_SLOTS),
                )
            for slots in series if timely else series[1:]:
                slots.add(sums, now)
        for key, sums in risen.endpoints.items() if timely else ():
            found = self._endpoints.get(key)
            if found is None:
                if len(self._endpoints) >= MAX_ENDPOINTS:
                    continue
                found = self._endpoints[key] = (
                    TimeSlots(SHORT_S, WINDOW),
                    TimeSlots(COARSE_S, COARSE_SLOTS),
                )
            for slots in found:
                slots.add(sums, now)

    def variant(self, pool: str, variant: str) -> RecentTraffic:
        """Return the last minute of a variant; the empty one has the pool's refusals."""
        series = self._variants.get((pool, variant))
        return self._rates(None if series is None else series[0])

    def endpoint(self, pool: str, endpoint: str) -> RecentTraffic:
        """Return the last minute of an endpoint."""
        series = self._endpoints.get((pool, endpoint))
        return self._rates(None if series is None else series[0])

    def hour(self, pool: str, endpoint: str) -> RequestCounts:
        """Return what is known of an endpoint in the hour before the last minute."""
        series, now = self._endpoints.get((pool, endpoint)), self._clock()
        if series is None:
            return NOTHING
        return since(series[1].total(now, COARSE_SLOTS), series[0].total(now, WINDOW))

    def history(self, pool: str = "") -> Iterator[tuple[Key, float, RequestCounts]]:
        """Yield the minutes of the last hour: series, age of the minute's begin, counts.

        Args:
            pool: Only this pool; empty = all.
        """
        now = self._clock()
        for key, series in sorted(self._variants.items()):
            if not pool or key[0] == pool:
                for age_s, sums in series[1].points(now):
                    yield key, age_s, sums

    def _rates(self, slots: TimeSlots | None) -> RecentTraffic:
        now = self._clock()
        seconds = (WINDOW - 1) * SHORT_S + now % SHORT_S
        covered = max(min(seconds, now - self._began), SHORT_S)
        return RecentTraffic(NOTHING if slots is None else slots.total(now, WINDOW), covered)

    def _in_fleet(self) -> tuple[Collection[Key], Collection[Key]]:
        if self._known is None:
            variants, endpoints = self._known = self._names()
            for key in [k for k in self._variants if k != NOWHERE and k not in variants]:
                del self._variants[key]
            for key in [each for each in self._endpoints if each not in endpoints]:
                del self._endpoints[key]
        return self._known
