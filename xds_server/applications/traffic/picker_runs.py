"""What each picker has reported so far, so that nothing is counted twice. Pure.

Rules:

1. Counts are sums over a *run* of a picker's process. Of each run the highest known counts are
   kept; what a report is above them is new. So a report that is repeated or overtaken adds nothing,
   and a restarted picker, which has another run, begins at 0.
2. The first report of a run is new as a whole if the run is at most ``YOUNG_S`` old. That of an
   older one is only the basis of what comes: it was counted before this server listened.
3. Of each picker the ``MAX_RUNS`` runs that reported last are kept, of all pickers together
   ``MAX_SERIES`` series; series above that are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from xds_server.applications.traffic.request_counts import NOTHING, RequestCounts, highest, since

if TYPE_CHECKING:
    from collections.abc import Mapping

YOUNG_S: Final = 15.0
MAX_RUNS: Final = 2
MAX_PICKERS: Final = 2048
"""Pickers of which counts are kept; beyond that the one that reported least recently is dropped."""
MAX_SERIES: Final = 262_144

Key = tuple[str, str]
"""Pool and variant, or pool and endpoint id."""


class Counted(NamedTuple):
    """One report: the counts of a run as far as they have changed."""

    run: int
    age_s: float
    """Age of the run in seconds."""
    variants: Mapping[Key, RequestCounts]
    endpoints: Mapping[Key, RequestCounts]


class Increments(NamedTuple):
    """What a report adds."""

    variants: Mapping[Key, RequestCounts]
    endpoints: Mapping[Key, RequestCounts]
    over_s: float
    """Seconds since the report before, in which these requests ended."""


class _Run:
    __slots__ = ("at", "series")

    def __init__(self, at: float) -> None:
        self.at = at
        self.series: tuple[dict[Key, RequestCounts], dict[Key, RequestCounts]] = ({}, {})


class PickerRuns:
    """The runs of all pickers; see the module's rules."""

    def __init__(self) -> None:
        self._pickers: dict[str, dict[int, _Run]] = {}
        self._series = 0

    @property
    def series(self) -> int:
        """Number of series that are kept."""
        return self._series

    def take(self, picker: str, counted: Counted, now: float) -> Increments:
        """Return what a report adds to all before it.

        Args:
            picker: The picker's id.
            counted: The report.
            now: Monotonic seconds.
        """
        runs = self._pickers.pop(picker, {})
        self._pickers[picker] = runs  # the last is the one that reported last
        while len(self._pickers) > MAX_PICKERS:
            self._drop(self._pickers.pop(next(iter(self._pickers))))
        run = runs.pop(counted.run, None)
        basis = run is None and counted.age_s > YOUNG_S
        over_s = counted.age_s if run is None else max(0.0, now - run.at)
        if run is None:
            run = _Run(now)
        run.at = now
        runs[counted.run] = run
        while len(runs) > MAX_RUNS:
            oldest = next(iter(runs))
            self._drop({oldest: runs.pop(oldest)})
        found: list[dict[Key, RequestCounts]] = []
        for known, reported in zip(run.series, (counted.variants, counted.endpoints), strict=True):
            new = self._rise(known, reported)
            found.append({} if basis else new)
        return Increments(found[0], found[1], over_s)

    def _rise(
        self, known: dict[Key, RequestCounts], reported: Mapping[Key, RequestCounts]
    ) -> dict[Key, RequestCounts]:
        new: dict[Key, RequestCounts] = {}
        for key, sums in reported.items():
            before = known.get(key)
            if before is None:
                if self._series >= MAX_SERIES:
                    continue
                self._series += 1
                before = NOTHING
            after = known[key] = highest(before, sums)
            risen = since(after, before)
            if risen != NOTHING:
                new[key] = risen
        return new

    def _drop(self, runs: Mapping[int, _Run]) -> None:
        self._series -= sum(len(part) for run in runs.values() for part in run.series)
