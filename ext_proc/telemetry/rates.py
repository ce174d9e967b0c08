"""Computes rates from the counters of one endpoint's pages, and detects restarts.

Rules:

1. A rate needs two pages and progress between them; otherwise it is unknown, not 0.
2. A success counter below its last known value means that the replica was restarted, whether seen
   directly or after failed scrapes. Nothing is computed across a restart. Counters of models that
   left the page are remembered, because a restarted server shows a model only once it is loaded
   again.
3. It is no restart where the process is known to be the same: the page says that it started when
   it did before, or it came over the connection of the page before and another model's counter
   went on. Then a model was loaded again, and nothing is computed for that model only. The
   connection alone proves nothing: a proxy may keep it.
4. At most ``MAX_MODELS`` models are remembered.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.telemetry.dialects import ModelVersion

if TYPE_CHECKING:
    from ext_proc.routing.values.reading import Reading
    from ext_proc.telemetry.dialects import Counters, PageReadings

MAX_MODELS: Final = 1024
"""Maximum models per replica whose counters are remembered."""


class Rated(NamedTuple):
    """A page's readings with rates."""

    readings: tuple[Reading, ...]
    restarted: bool


class Rates:
    """Counters of one endpoint."""

    def __init__(self) -> None:
        self._known: dict[ModelVersion, tuple[float, Counters]] = {}
        self._started_unix_s: float | None = None

    def __len__(self) -> int:
        return len(self._known)

    def take(self, page: PageReadings, *, kept: bool = False) -> Rated:
        """Process a page; return its readings with their rates.

        Args:
            page: The page.
            kept: It came over the connection that brought the page before it.
        """
        known = self._known
        fell, went_on = set[ModelVersion](), False
        for key, count in page.successes.items():
            earlier = known[key][1].successes if key in known else None
            if earlier is None:
                continue
            if count < earlier:
                fell.add(key)
            elif earlier > 0:
                went_on = True
        started, before = page.started_unix_s, self._started_unix_s
        if started is not None:
            self._started_unix_s = started
        told = started is not None and before is not None
        same = started == before if told else kept and went_on
        restarted = bool(fell) and not same
        for key in list(known) if restarted else fell:
            del known[key]
        rated = tuple(self._rated(each, page) for each in page.readings)
        for key, counters in page.counters.items():
            if key in known or len(known) < MAX_MODELS:
                known[key] = (page.at, counters)
        return Rated(rated, restarted)

    def _rated(self, reading: Reading, page: PageReadings) -> Reading:
        if reading.model is None:
            return reading
        key = ModelVersion(reading.model, reading.version)
        earlier, now = self._known.get(key), page.counters.get(key)
        if earlier is None or now is None:
            return reading
        at, before = earlier
        done = _grown(before.successes, now.successes)
        elapsed = page.at - at
        failures = [
            (reason, (count - before.failures[reason]) / elapsed)
            for reason, count in sorted(now.failures.items())
            if elapsed > 0 and count > before.failures.get(reason, count)
        ]
        return replace(
            reading,
            queue_s=_each(_grown(before.queue_s, now.queue_s), done),
            compute_s=_each(_grown(before.compute_s, now.compute_s), done),
            failures_per_s=tuple(failures),
        )


def _grown(before: float | None, now: float | None) -> float | None:
    if before is None or now is None or now < before:
        return None
    return now - before


def _each(seconds: float | None, requests: float | None) -> float | None:
    return None if seconds is None or not requests else seconds / requests
