"""Metrics of the requests that ended, by variant, computed at a scrape.

Rules:

1. The values are those of ``TrafficCounts``: nothing is counted twice, and the path of a request
   pays nothing.
2. A metric has at most ``MAX_SERIES`` samples, so that a page is not blocked by a histogram;
   variants above that are left out.
3. Bounds of the histograms are those of every ``STEP`` th bucket that is counted, so their counts
   are exact. Their sums are not known: each request counts with the middle of its bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from ext_proc.observability.counts import MAX_SERIES
from ext_proc.observability.traffic import GOOD
from tidegate_common.histogram import GROWTH, LEAST_S, middle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ext_proc.observability.traffic import TrafficCounts

FIRST: Final = 17
"""Number of the first bucket whose bound is shown: 5 ms."""
STEP: Final = 8
BOUNDS: Final = tuple(range(FIRST, 130, STEP))
"""Numbers of the buckets whose bounds are shown: to 218 s."""
_NAMES: Final = tuple(str(round(LEAST_S * GROWTH**each, 6)) for each in BOUNDS)
MAX_SPREADS: Final = MAX_SERIES // (len(BOUNDS) + 3)
"""Most variants in a histogram."""
_LABELS: Final = ("pool", "variant")


def of_traffic(counts: TrafficCounts) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
    """Yield requests by outcome, and histograms of their times; see the module's rules."""
    found = sorted((key, each) for key, each in counts.variants.items() if key[1])
    requests = CounterMetricFamily(
        "tidegate_picker_requests",
        "Requests that ended, by variant and how they ended.",
        labels=(*_LABELS, "outcome"),
    )
    for (pool, variant), each in found:
        if len(requests.samples) + len(each.failed) >= MAX_SERIES:
            break
        bad = dict(each.failed)
        requests.add_metric([pool, variant, GOOD], each.requests - sum(bad.values()))
        for outcome, count in sorted(bad.items()):
            requests.add_metric([pool, variant, outcome], count)
    yield requests
    first = HistogramMetricFamily(
        "tidegate_picker_request_first_byte_seconds",
        "From the start of a request at the proxy to the first byte of its answer.",
        labels=_LABELS,
    )
    lasted = HistogramMetricFamily(
        "tidegate_picker_request_seconds",
        "From the start of a request at the proxy to its end.",
        labels=_LABELS,
    )
    for key, each in found[:MAX_SPREADS]:
        first.add_metric(key, *_spread(each.first_byte))
        lasted.add_metric(key, *_spread(each.duration))
    yield first
    yield lasted


def _spread(counts: Mapping[int, int]) -> tuple[list[tuple[str, float]], float]:
    """Return the buckets, each with those below it, and the sum in seconds."""
    buckets: list[tuple[str, float]] = []
    for name, bound in zip(_NAMES, BOUNDS, strict=True):
        buckets.append((name, sum(n for number, n in counts.items() if number <= bound)))
    buckets.append(("+Inf", sum(counts.values())))
    return buckets, sum(middle(number) * count for number, count in counts.items())
