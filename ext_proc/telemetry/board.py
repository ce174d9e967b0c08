"""What all sources say about each endpoint, merged. Pure.

Laws:
* A source's readings stand in place of its earlier ones; those of other sources stay.
* Field by field the newest source that knows it wins. A source that is more than ``FRESH_S`` older
  than the newest adds nothing.
* A merged reading is as old as the oldest source that it took something from: no number ever
  looks younger than it is.
* Only endpoints of the fleet are held, each with at most ``MAX_SOURCES`` sources of
  ``MAX_READINGS`` readings.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from ext_proc.routing.state.replica import FRESH_S, MAX_READINGS
from ext_proc.routing.values.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_SOURCES: Final = 4

_NAMES: Final = ("at", "model", "version")
_UNKNOWN: Final[tuple[tuple[str, Any], ...]] = tuple(
    (each.name, each.default) for each in fields(Reading) if each.name not in _NAMES
)
_Said = tuple[float, tuple[Reading, ...]]
"""When a source was last heard, and what it said."""


class Board:
    """Readings by endpoint and source."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, _Said]] = {}

    def set_endpoints(self, endpoints: Iterable[str]) -> None:
        """Hold exactly these from now on; what is known of those that stay is kept."""
        self._said = {each: self._said.get(each, {}) for each in endpoints}

    def put(
        self, endpoint: str, source: str, readings: Sequence[Reading], at: float
    ) -> tuple[Reading, ...]:
        """Take what a source says and return what all of them say now.

        Args:
            endpoint: The endpoint; one that is not held is passed over.
            source: Name of the source.
            readings: In place of its earlier ones.
            at: The time that they speak of, monotonic seconds.
        """
        sources = self._said.get(endpoint)
        if sources is None or (source not in sources and len(sources) >= MAX_SOURCES):
            return ()
        sources[source] = (at, tuple(readings[:MAX_READINGS]))
        if len(sources) == 1:
            return sources[source][1]
        return self._merged(sources)

    def drop(self, endpoint: str, source: str) -> None:
        """Forget a source."""
        self._said.get(endpoint, {}).pop(source, None)

    def clear(self, endpoint: str) -> None:
        """Forget all that was said of an endpoint: its process is a new one."""
        if endpoint in self._said:
            self._said[endpoint] = {}

    def age_s(self, endpoint: str, now: float) -> float | None:
        """Return the age of the newest word about an endpoint, ``None`` without any."""
        sources = self._said.get(endpoint)
        return now - max(at for at, _ in sources.values()) if sources else None

    def sources(self, endpoint: str) -> dict[str, float]:
        """Return when each source was last heard."""
        return {name: at for name, (at, _) in self._said.get(endpoint, {}).items()}

    def _merged(self, sources: dict[str, _Said]) -> tuple[Reading, ...]:
        newest_first = sorted(sources.values(), key=lambda said: said[0], reverse=True)
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
    """Take from ``older`` what ``newer`` does not know."""
    found = {
        name: value
        for name, unknown in _UNKNOWN
        if getattr(newer, name) == unknown and (value := getattr(older, name)) != unknown
    }
    return replace(newer, at=min(newer.at, older.at), **found) if found else newer
