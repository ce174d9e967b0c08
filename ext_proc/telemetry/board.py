"""Merges the readings of all sources per endpoint. Pure.

Rules:

1. A source's readings replace its earlier ones; those of other sources stay.
2. For each field the newest source that knows it wins. A source that is more than ``FRESH_S`` older
   than the newest contributes nothing.
3. A merged reading is as old as the oldest source that contributed to it, so no value ever looks
   younger than it is.
4. Only endpoints of the fleet are held, each with at most ``MAX_SOURCES`` sources of
   ``MAX_READINGS`` readings.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from ext_proc.routing.state.candidates import FRESH_S, MAX_READINGS
from ext_proc.routing.values.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_SOURCES: Final = 4

_NAMES: Final = ("at", "model", "version")
_UNKNOWN: Final[tuple[tuple[str, Any], ...]] = tuple(
    (each.name, each.default) for each in fields(Reading) if each.name not in _NAMES
)
_SourceReport = tuple[float, tuple[Reading, ...]]
"""Time of a source's last report (monotonic seconds), and its readings."""


class Board:
    """Readings by endpoint and source."""

    def __init__(self) -> None:
        self._reports: dict[str, dict[str, _SourceReport]] = {}

    def set_endpoints(self, endpoints: Iterable[str]) -> None:
        """Hold exactly these endpoints; readings of endpoints that stay are kept."""
        self._reports = {each: self._reports.get(each, {}) for each in endpoints}

    def put(
        self, endpoint: str, source: str, readings: Sequence[Reading], at: float
    ) -> tuple[Reading, ...]:
        """Store a source's readings and return the merged readings of all sources.

        Args:
            endpoint: The endpoint; one that is not held is ignored.
            source: Name of the source.
            readings: They replace the source's earlier ones.
            at: Time of the readings, monotonic seconds.
        """
        sources = self._reports.get(endpoint)
        if sources is None or (source not in sources and len(sources) >= MAX_SOURCES):
            return ()
        sources[source] = (at, tuple(readings[:MAX_READINGS]))
        if len(sources) == 1:
            return sources[source][1]
        return self._merged(sources)

    def drop(self, endpoint: str, source: str) -> None:
        """Remove a source."""
        self._reports.get(endpoint, {}).pop(source, None)

    def clear(self, endpoint: str) -> None:
        """Remove all readings of an endpoint, because its process has restarted."""
        if endpoint in self._reports:
            self._reports[endpoint] = {}

    def age_s(self, endpoint: str, now: float) -> float | None:
        """Return the age in seconds of an endpoint's newest readings, ``None`` without any."""
        sources = self._reports.get(endpoint)
        return now - max(at for at, _ in sources.values()) if sources else None

    def sources(self, endpoint: str) -> dict[str, float]:
        """Return the time of each source's last report."""
        return {name: at for name, (at, _) in self._reports.get(endpoint, {}).items()}

    def _merged(self, sources: dict[str, _SourceReport]) -> tuple[Reading, ...]:
        newest_first = sorted(sources.values(), key=lambda report: report[0], reverse=True)
        oldest = newest_first[0][0] - FRESH_S
        merged: dict[tuple[str | None, str | None], Reading] = {}
        for at, readings in newest_first:
            if at < oldest:
                break
            for each in readings:
                key = (each.model, each.version)
                known = merged.get(key)
                merged[key] = each if known is None else _filled(known, each)
        return tuple(merged.values())[:MAX_READINGS]


def _filled(newer: Reading, older: Reading) -> Reading:
    """Fill the unknown fields of ``newer`` from ``older``."""
    found = {
        name: value
        for name, unknown in _UNKNOWN
        if getattr(newer, name) == unknown and (value := getattr(older, name)) != unknown
    }
    return replace(newer, at=min(newer.at, older.at), **found) if found else newer
