"""Counters and timings of an event loop's hot path, read by Prometheus when it asks.

Law: one thread adds and reads, so there are no locks; adding is a dictionary look-up and an
addition (prometheus-client's own children take a mutex each time, about 0.7 µs). A counter holds
at most `MAX_SERIES` label sets; what is above counts under ``other``.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import CollectorRegistry

MAX_SERIES: Final = 1_000
"""Most label sets of one metric."""


class Counts(Collector):
    """A counter with labels.

    Args:
        name: Its name, without ``_total``.
        about: One sentence.
        labels: Names of its labels.
        registry: Where it is registered.
        known: Label sets that are shown from the start.
    """

    def __init__(
        self,
        name: str,
        about: str,
        labels: Sequence[str],
        registry: CollectorRegistry,
        *,
        known: Sequence[tuple[str, ...]] = (),
    ) -> None:
        self._name = name
        self._about = about
        self._labels = tuple(labels)
        self._other = ("other",) * len(self._labels)
        self._values: dict[tuple[str, ...], float] = dict.fromkeys(known, 0)
        registry.register(self)

    def add(self, labels: tuple[str, ...], by: float = 1) -> None:
        """Add to the series of these label values."""
        values = self._values
        if labels in values:
            values[labels] += by
        elif len(values) < MAX_SERIES:
            values[labels] = by
        else:
            values[self._other] = values.get(self._other, 0) + by

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the present values, as Prometheus' client asks for them."""
        family = CounterMetricFamily(self._name, self._about, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        yield family


class Timings(Collector):
    """A histogram of seconds with one label.

    Args:
        name: Its name.
        about: One sentence.
        label: Name of the label.
        parts: Its values; there are no others.
        bounds: Upper bounds of the buckets, rising; the last bucket has none.
        registry: Where it is registered.
    """

    def __init__(
        self,
        name: str,
        about: str,
        label: str,
        parts: Sequence[str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._about = about
        self._label = label
        self._bounds = tuple(bounds)
        self._counts = {part: [0] * (len(self._bounds) + 1) for part in parts}
        self._sums = dict.fromkeys(parts, 0.0)
        registry.register(self)

    def observe(self, part: str, seconds: float) -> None:
        """Count one duration."""
        self._counts[part][bisect_left(self._bounds, seconds)] += 1
        self._sums[part] += seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the present values, as Prometheus' client asks for them."""
        family = HistogramMetricFamily(self._name, self._about, labels=[self._label])
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for part, counts in self._counts.items():
            buckets = list(zip(names, accumulate(counts), strict=True))
            family.add_metric([part], buckets, self._sums[part])
        yield family
