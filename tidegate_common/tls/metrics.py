"""Metrics of a service's certificate, computed at a scrape.

Rule: without TLS there is no sample: that nothing ends is not the same as that much time is left.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import CollectorRegistry

    from tidegate_common.tls.settings import Secured


class CertificateMetrics(Collector):
    """The time that is left of the certificate in force, and whether other files wait.

    Args:
        registry: Registry of the metrics.
        prefix: Begin of their names, such as ``tidegate_picker``.
        secured: Identity of the service; ``None`` = it has no TLS.
        wall_clock: Unix seconds.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        prefix: str,
        secured: Secured | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._prefix = f"{prefix}_certificate"
        self.secured = secured
        self._wall_clock = wall_clock
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current values."""
        left = GaugeMetricFamily(
            f"{self._prefix}_left_seconds",
            "Time until the certificate in force ends; no sample without TLS.",
        )
        life = GaugeMetricFamily(
            f"{self._prefix}_life_seconds",
            "Time from the begin of the certificate in force to its end; no sample without TLS.",
        )
        fault = GaugeMetricFamily(
            f"{self._prefix}_fault",
            "1 while the files of the certificate have changed and cannot be used.",
        )
        if self.secured is not None:
            identity = self.secured.identity
            held = identity.material.validity
            left.add_metric([], held.ends - self._wall_clock())
            life.add_metric([], held.life_s)
            fault.add_metric([], float(bool(identity.fault)))
        yield left
        yield life
        yield fault
