"""The gateway's metrics."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric

    from gateway.asking import Asker
    from gateway.ports import GatewayCalls
    from gateway.questions import Questions


class GatewayMetrics:
    """Metrics of one gateway, on a registry of their own.

    Args:
        calls: Counts answered calls.
        questions: Counts remembered statistics.
        asker: Counts channels.
    """

    content_type: Final = CONTENT_TYPE_LATEST

    def __init__(self, calls: GatewayCalls, questions: Questions, asker: Asker) -> None:
        self.registry = CollectorRegistry()
        self.connected = Gauge(
            "tidegate_gateway_control_connected",
            "1 if the control server is connected.",
            registry=self.registry,
        )
        running = Gauge(
            "tidegate_gateway_calls_running",
            "Calls that are being answered.",
            registry=self.registry,
        )
        running.set_function(lambda: calls.running)
        rows = Gauge(
            "tidegate_gateway_statistics_rows",
            "Remembered statistics, one row per model version and replica.",
            registry=self.registry,
        )
        rows.set_function(lambda: questions.statistics.rows)
        channels = Gauge(
            "tidegate_gateway_channels",
            "Open gRPC channels to replicas.",
            registry=self.registry,
        )
        channels.set_function(lambda: asker.channels)
        streams = Gauge(
            "tidegate_gateway_streams",
            "Open streams by kind: watch (of the readiness) or reflection.",
            labelnames=("kind",),
            registry=self.registry,
        )
        for kind in calls.streams.open:
            streams.labels(kind).set_function(partial(calls.streams.open.__getitem__, kind))
        self.registry.register(_CallCounts(calls))

    def page(self) -> bytes:
        """Return the metrics page."""
        return generate_latest(self.registry)


class _CallCounts(Collector):
    def __init__(self, calls: GatewayCalls) -> None:
        self._calls = calls

    def collect(self) -> Iterable[Metric]:
        found = CounterMetricFamily(
            "tidegate_gateway_calls",
            "Calls by protocol and outcome: ok, error or busy (refused at the bound).",
            labels=("protocol", "outcome"),
        )
        for labels, value in self._calls.answered.items():
            found.add_metric(labels, value)
        yield found
