"""Metrics of replicas' deaths and of what is held against requests for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from ext_proc.routing.suspicion import Suspicion


class DeathMetrics(Collector):
    """Counts of ``Suspicion``, read when Prometheus scrapes; equal in all workers of a picker.

    Args:
        registry: Registry of the metrics.
        suspicion: The counts.
    """

    def __init__(self, registry: CollectorRegistry, suspicion: Suspicion) -> None:
        self._suspicion = suspicion
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        deaths = self._suspicion.deaths
        yield CounterMetricFamily(
            "tidegate_picker_replica_deaths",
            "Times that a replica broke connections with requests that it had read; the same in "
            "each worker.",
            deaths.counted,
        )
        yield GaugeMetricFamily(
            "tidegate_picker_suspects",
            "Request bodies that a replica died with in the last minute, and that no replica has "
            "answered since; the same in each worker.",
            deaths.suspects,
        )
        yield GaugeMetricFamily(
            "tidegate_picker_deadly_requests",
            "Request bodies that are refused because replicas died with them; the same in each "
            "worker.",
            len(deaths.condemned),
        )
