"""Metrics of the feedback; ``ext_proc.observability.counts`` states the rules of labels."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ext_proc.feedback.traffic_metrics import TrafficMetrics
from ext_proc.observability.counts import MAX_SERIES, Counts, Timings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import CollectorRegistry

    from ext_proc.feedback.fold import Feedback
    from ext_proc.observability.traffic import TrafficCounts
    from ext_proc.routing.health.conditions import Conditions

_LAGS: Final = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class FeedbackMetrics(Collector):
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
        if traffic is not None:
            TrafficMetrics(registry, traffic)
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
        registry.register(self)

    def lag(self, seconds: float) -> None:
        """Observe the delay of a final entry in seconds."""
        self._observe("final", seconds if seconds > 0.0 else 0.0)  # noqa: FURB136 - half the time

    def dropped(self, reason: str) -> None:
        """Count a dropped message."""
        self._dropped.add((reason,))

    def proxied(self, pool: str, cause: str) -> None:
        """Count an answer of the proxy's own; ``pool`` is empty where it is not known."""
        self._proxied.add((pool, cause))

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the values kept elsewhere, when Prometheus scrapes."""
        yield from self._usage()
        entries = CounterMetricFamily(
            "tidegate_picker_feedback_entries",
            "Log entries by how the request's last attempt ended.",
            labels=["outcome"],
        )
        for outcome, count in sorted(self._feedback.outcomes.items()):
            entries.add_metric([outcome], count)
        yield entries
        attempts = CounterMetricFamily(
            "tidegate_picker_attempts",
            "Attempts at replicas, by who is to blame.",
            labels=["pool", "blame"],
        )
        for (pool, blame), count in sorted(self._feedback.blamed.items())[:MAX_SERIES]:
            attempts.add_metric([pool, blame], count)
        yield attempts
        yield CounterMetricFamily(
            "tidegate_picker_feedback_retried",
            "Requests served by a replica other than the pick.",
            value=self._feedback.retried,
        )
        ejections = CounterMetricFamily(
            "tidegate_picker_ejections",
            "Ejections of replicas, by their cause.",
            labels=["pool", "cause"],
        )
        for (pool, cause), count in sorted(self._conditions.ejected.items())[:MAX_SERIES]:
            ejections.add_metric([pool, cause], count)
        yield ejections
        conditions = GaugeMetricFamily(
            "tidegate_picker_conditions",
            "Replicas that have the condition now.",
            labels=["pool", "condition"],
        )
        for pool, name, count in list(self._conditions.counts())[:MAX_SERIES]:
            conditions.add_metric([pool, name], count)
        yield conditions
        replicas = GaugeMetricFamily(
            "tidegate_picker_replica_condition",
            "1 while the replica has the condition.",
            labels=["pool", "endpoint", "condition"],
        )
        of = self._conditions.of
        unwell = sorted(self._conditions.unwell())[:MAX_SERIES]
        found = ((pool, key.id, name) for pool, key in unwell for name in of(pool, key))
        for series in islice(found, MAX_SERIES):
            replicas.add_metric(series, 1)
        yield replicas

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
            for key, value in sorted(values.items())[:MAX_SERIES]:
                family.add_metric(list(key), value)
            yield family
