"""Metrics of the feedback; ``ext_proc.observability.counts`` states the rules of labels.

Rules for those of the requests that ended, by variant, which are computed at a scrape:

1. The values are those of ``TrafficCounts``: nothing is counted twice, and the path of a request
   pays nothing.
2. A metric has at most ``MAX_SERIES`` samples, so that a page is not blocked by a histogram;
   variants above that are left out.
3. Bounds of the histograms are those of every ``STEP`` th bucket that is counted, so their counts
   are exact. Their sums are not known: each request counts with the middle of its bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client import Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from ext_proc.observability.counts import MAX_SERIES, Counts, Scraped, Timings, filled
from ext_proc.observability.traffic import GOOD
from tidegate_common.histogram import GROWTH, LEAST_S, middle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from ext_proc.feedback.fold import Feedback
    from ext_proc.observability.traffic import TrafficCounts
    from ext_proc.routing.health.conditions import Conditions


_LAGS: Final = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class FeedbackMetrics:
    """Metrics of entries, their lag, ejections and conditions.

    Args:
        registry: Registry of the metrics.
        feedback: Source of the entry counters.
        conditions: Source of ejections and conditions.
        traffic: Source of the requests that ended; ``None`` = they are not shown.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        feedback: Feedback,
        conditions: Conditions,
        traffic: TrafficCounts | None = None,
    ) -> None:
        self._traffic = traffic
        self._feedback = feedback
        self._conditions = conditions
        self.streams = 0
        """Number of open log streams."""
        Gauge(
            "tidegate_picker_feedback_streams", "Open log streams of the proxy.", registry=registry
        ).set_function(lambda: self.streams)
        self._lag = Timings(
            "tidegate_picker_feedback_lag_seconds",
            "From the end of a request to the arrival of its log entry.",
            "entry",
            ["final"],
            _LAGS,
            registry,
        )
        self._observe = self._lag.spread.observe
        self._dropped = Counts(
            "tidegate_picker_feedback_dropped",
            "Log messages that were dropped.",
            ["reason"],
            registry,
        )
        self._proxied = Counts(
            "tidegate_picker_proxy_answers",
            "Requests that the proxy answered by itself, by the cause that it gives.",
            ["pool", "cause"],
            registry,
        )
        Scraped(registry, self._families)

    def lag(self, seconds: float) -> None:
        """Observe the delay of a final entry in seconds."""
        self._observe("final", seconds if seconds > 0.0 else 0.0)  # noqa: FURB136 - half the time

    def dropped(self, reason: str) -> None:
        """Count a dropped message."""
        self._dropped.add((reason,))

    def proxied(self, pool: str, cause: str) -> None:
        """Count an answer of the proxy's own; ``pool`` is empty where it is not known."""
        self._proxied.add((pool, cause))

    def _families(self) -> Iterator[Metric]:
        """Yield the values kept elsewhere."""
        if self._traffic is not None:
            yield from of_traffic(self._traffic)
        yield from self._usage()
        feedback, conditions = self._feedback, self._conditions
        yield filled(
            CounterMetricFamily(
                "tidegate_picker_feedback_entries",
                "Log entries by how the request's last attempt ended.",
                labels=["outcome"],
            ),
            (([outcome], count) for outcome, count in sorted(feedback.outcomes.items())),
        )
        yield filled(
            CounterMetricFamily(
                "tidegate_picker_attempts",
                "Attempts at replicas, by who is to blame.",
                labels=["pool", "blame"],
            ),
            sorted(feedback.blamed.items()),
        )
        yield CounterMetricFamily(
            "tidegate_picker_feedback_retried",
            "Requests served by a replica other than the pick.",
            value=feedback.retried,
        )
        yield filled(
            CounterMetricFamily(
                "tidegate_picker_ejections",
                "Ejections of replicas, by their cause.",
                labels=["pool", "cause"],
            ),
            sorted(conditions.ejected.items()),
        )
        yield filled(
            GaugeMetricFamily(
                "tidegate_picker_conditions",
                "Replicas that have the condition now.",
                labels=["pool", "condition"],
            ),
            (([pool, name], count) for pool, name, count in list(conditions.counts())),
        )
        unwell = sorted(conditions.unwell())[:MAX_SERIES]
        yield filled(
            GaugeMetricFamily(
                "tidegate_picker_replica_condition",
                "1 while the replica has the condition.",
                labels=["pool", "endpoint", "condition"],
            ),
            (
                ((pool, key.id, name), 1)
                for pool, key in unwell
                for name in conditions.of(pool, key)
            ),
        )

    def _usage(self) -> Iterator[CounterMetricFamily]:
        usage, by_kind, by_model = (
            self._feedback.usage,
            ["pool", "model", "kind"],
            ["pool", "model"],
        )
        families: tuple[tuple[str, str, list[str], Mapping[Any, float]], ...] = (
            ("tokens", "Tokens that streamed answers told.", by_kind, usage.tokens),
            ("token_answers", "Streamed answers that told such a count.", by_kind, usage.answers),
            (
                "output_tokens_after_first",
                "Output tokens after the first of answers whose times are known.",
                by_model,
                usage.between,
            ),
            (
                "output_seconds",
                "Seconds from the first byte of these answers to their last.",
                by_model,
                usage.seconds,
            ),
        )
        for name, about, labels, values in families:
            family = CounterMetricFamily(f"tidegate_picker_{name}", about, labels=labels)
            yield filled(family, sorted(values.items()))


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
