"""Counters and histograms for the event loop's hot path, collected when Prometheus scrapes.

The values are kept in ``traffic``, because prometheus-client's own children take a mutex each time,
about 0.7 µs.
"""

from __future__ import annotations

from itertools import accumulate, islice
from typing import TYPE_CHECKING, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ext_proc.observability.traffic import MAX_SERIES, Series, Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

__all__ = ["MAX_SERIES", "Counts", "Scraped", "Timings", "filled"]

FamilyT = TypeVar("FamilyT", CounterMetricFamily, GaugeMetricFamily)


def filled(family: FamilyT, rows: Iterable[tuple[Sequence[str], float]]) -> FamilyT:
    """Add the first ``MAX_SERIES`` of the rows, of labels and a value, to a family; return it."""
    for labels, value in islice(rows, MAX_SERIES):
        family.add_metric(labels, value)
    return family


class Scraped(Collector):
    """Metrics that are computed when Prometheus scrapes.

    Args:
        registry: Registry of the metrics.
        families: Yields the current values, one family after the other, so that a page can be
            written in slices.
    """

    def __init__(
        self, registry: CollectorRegistry, families: Callable[[], Iterable[Metric]]
    ) -> None:
        self._families = families
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Return the current values."""
        return self._families()


class Counts(Collector):
    """A counter with labels.

    Args:
        name: Name of the metric, without ``_total``.
        about: Help text, one sentence.
        labels: Names of the labels.
        registry: Registry of the metric.
        known: Label sets that exist from the start.
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
        self.series = Series(len(self._labels), known)
        """The values."""
        registry.register(self)

    def add(self, labels: tuple[str, ...], by: float = 1) -> None:
        """Add to the series of these label values."""
        self.series.add(labels, by)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the current values, when Prometheus scrapes."""
        family = CounterMetricFamily(self._name, self._about, labels=self._labels)
        for labels, value in self.series.values.items():
            family.add_metric(labels, value)
        yield family


class Timings(Collector):
    """A histogram of seconds with one label.

    Args:
        name: Name of the metric.
        about: Help text, one sentence.
        label: Name of the label.
        parts: All values of the label.
        bounds: Upper bounds of the buckets, ascending; the last bucket is unbounded.
        registry: Registry of the metric.
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
        self.spread = Spread(parts, bounds)
        """The values."""
        registry.register(self)

    def observe(self, part: str, seconds: float) -> None:
        """Count one duration."""
        self.spread.observe(part, seconds)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the current values, when Prometheus scrapes."""
        family = HistogramMetricFamily(self._name, self._about, labels=[self._label])
        names = [*map(floatToGoString, self.spread.bounds), "+Inf"]
        for part, counts in self.spread.counts.items():
            buckets = list(zip(names, accumulate(counts), strict=True))
            family.add_metric([part], buckets, self.spread.sums[part])
        yield family
