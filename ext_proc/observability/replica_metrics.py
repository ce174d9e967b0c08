"""Metrics of replicas, their deaths and versions, computed at a scrape: the hot path pays nothing.

Rule: an unknown number has no sample, and is never 0. At most ``MAX_SERIES`` replicas are shown;
for larger fleets the extremes in ``/debug/state`` are more useful than a page.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from ext_proc.observability.counts import MAX_SERIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from ext_proc.observability.traffic import EndpointCounts
    from ext_proc.routing.health.placement import Placement
    from ext_proc.routing.limits import Limits
    from ext_proc.routing.scales import Scales
    from ext_proc.routing.state.replica import Replica
    from ext_proc.routing.suspicion import Suspicion
    from ext_proc.routing.values.pool import Pool


class ReplicaMetrics(Collector):
    """Queue, age of readings, and response speed, by endpoint.

    Args:
        registry: Registry of the metrics.
        replicas: Returns the state of each replica.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        replicas: Callable[[], Iterable[Replica]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replicas = replicas
        self._clock = clock
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current values."""
        queue = GaugeMetricFamily(
            "tidegate_picker_replica_queue",
            "Requests in the replica: this picker's in flight, and others' that wait there.",
            labels=["endpoint"],
        )
        age = GaugeMetricFamily(
            "tidegate_picker_replica_reading_age_seconds",
            "Age of the oldest reading of the replica that is in use.",
            labels=["endpoint"],
        )
        first = GaugeMetricFamily(
            "tidegate_picker_replica_first_byte_seconds",
            "Usual time from a request's dispatch to the first byte of its response.",
            labels=["endpoint", "pool"],
        )
        speed = GaugeMetricFamily(
            "tidegate_picker_replica_bytes_per_second",
            "Usual speed of a response from its first byte to its last.",
            labels=["endpoint", "pool"],
        )
        # One family after the other, so that a page can be written in slices.
        now, replicas = self._clock(), list(islice(self._replicas(), MAX_SERIES))
        for replica in replicas:
            others = replica.others_queued(now) or 0.0
            queue.add_metric([replica.key.id], replica.load.in_flight + others)
        yield queue
        for replica in replicas:
            if replica.readings:
                oldest = min(each.at for each in replica.readings)
                age.add_metric([replica.key.id], now - oldest)
        yield age
        for family, name in ((first, "first_byte_s"), (speed, "bytes_per_s")):
            for replica in replicas:
                for pool, served in replica.served.items():
                    value = getattr(served, name).value
                    if value is not None:
                        family.add_metric([replica.key.id, pool], value)
            yield family


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
        yield CounterMetricFamily(
            "tidegate_picker_confined_requests",
            "Requests that were sent only to replicas that had died with similar ones, or had to "
            "wait for these.",
            self._suspicion.confined,
        )


class VersionMetrics(Collector):
    """Requests that another version than their variant's may have answered.

    Args:
        registry: Registry of the metrics.
        placement: The counts.
    """

    def __init__(self, registry: CollectorRegistry, placement: Placement) -> None:
        self._placement = placement
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        family = CounterMetricFamily(
            "tidegate_picker_version_moved_requests",
            "Requests without a version, for a variant with model_version, that a replica was sent "
            "between its last look and the one that found it answering by another version.",
            labels=["pool", "variant"],
        )
        for labels, count in list(self._placement.moved.items()):
            family.add_metric(labels, count)
        yield family


class ScaleMetrics(Collector):
    """Bytes of prompts per token, as far as they were learned.

    Args:
        registry: Registry of the metrics.
        scales: The scales; their models are those that pools list.
    """

    def __init__(self, registry: CollectorRegistry, scales: Scales) -> None:
        self._scales = scales
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        family = GaugeMetricFamily(
            "tidegate_picker_bytes_per_token",
            "Bytes of a prompt's text for each of its tokens, learned from engines' counts; an "
            "empty model is the pool as a whole.",
            labels=["pool", "model"],
        )
        for pool, model, scale in islice(self._scales.each(), MAX_SERIES):
            family.add_metric([pool, model], scale.force)
        yield family


class SlotMetrics(Collector):
    """How many requests replicas run at once, and how many they have, for autoscalers.

    Args:
        registry: Registry of the metrics.
        limits: The slots.
        pools: Returns the pools, by name.
        waiting: Returns the requests that wait in the picker, by pool and model.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        limits: Limits,
        pools: Callable[[], Mapping[str, Pool]],
        waiting: Callable[[], Mapping[tuple[str, str], int]],
    ) -> None:
        self._limits = limits
        self._pools = pools
        self._waiting = waiting
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        slots = GaugeMetricFamily(
            "tidegate_picker_slots",
            "Requests that the replica runs at once, by the source of this; an empty model is all"
            " that it serves.",
            labels=["pool", "endpoint", "model", "source"],
        )
        used = GaugeMetricFamily(
            "tidegate_picker_slot_utilisation",
            "Requests in flight per slot of the pool's replicas, for its fullest model; above 1,"
            " requests wait in engines. The same in each worker.",
            labels=["pool"],
        )
        needed = GaugeMetricFamily(
            "tidegate_picker_replicas_needed",
            "Replicas with which 70 % of the pool's slots would be in use; requests that wait in"
            " this worker count.",
            labels=["pool"],
        )
        waits = GaugeMetricFamily(
            "tidegate_picker_waiting",
            "Requests that wait in the picker for a replica with room.",
            labels=["pool"],
        )
        pools, held = dict(self._pools()), Counter[str]()
        for (pool, _), count in self._waiting().items():
            held[pool] += count
        shown = (
            ([name, each.key.id, model, known.source], known.slots)
            for name, pool in pools.items()
            for each in pool.endpoints
            for model, known in self._limits.of(each.key)
        )
        for labels, number in islice(shown, MAX_SERIES):
            slots.add_metric(labels, number)
        yield slots
        for name, each in islice(pools.items(), MAX_SERIES):
            usage = self._limits.usage(each).values()
            if usage:
                used.add_metric([name], max(one.utilisation for one in usage))
                needed.add_metric([name], max(one.needed(held[name]) for one in usage))
            waits.add_metric([name], held[name])
        yield used
        yield needed
        yield waits


class ToldMetrics(Collector):
    """What is told of replicas besides their conditions, and their requests, by endpoint.

    Args:
        registry: Registry of the metrics.
        notes: Returns pool, endpoint and name of what is wrong with replicas.
        counts: Requests by pool and endpoint.
        checks: Answers of engines about tokens, by pool and whether they agreed.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        notes: Callable[[], Iterable[tuple[str, str, str]]],
        counts: Mapping[tuple[str, str], EndpointCounts],
        checks: Mapping[tuple[str, bool], int],
    ) -> None:
        self._notes = notes
        self._counts = counts
        self._checks = checks
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        labels = ["pool", "endpoint"]
        notes = GaugeMetricFamily(
            "tidegate_picker_replica_note",
            "1 while something is wrong with the replica that keeps no requests from it: slow,"
            " slower, queue, tokens, kv-events.",
            labels=[*labels, "note"],
        )
        for series in islice(self._notes(), MAX_SERIES):
            notes.add_metric(series, 1)
        yield notes
        counted = list(islice(self._counts.items(), MAX_SERIES))
        requests = CounterMetricFamily(
            "tidegate_picker_replica_requests", "Requests that have ended.", labels=labels
        )
        failed = CounterMetricFamily(
            "tidegate_picker_replica_failed_requests",
            "Those of them that failed by a fault of the service.",
            labels=labels,
        )
        took = SummaryMetricFamily(
            "tidegate_picker_replica_request_seconds",
            "Seconds of requests that ended well, from their start at the proxy to their end.",
            labels=labels,
        )
        for key, each in counted:
            requests.add_metric(key, each.requests)
        yield requests
        for key, each in counted:
            failed.add_metric(key, each.failed)
        yield failed
        for key, each in counted:
            if each.timed:
                took.add_metric(list(key), each.timed, each.timed_s)
        yield took
        checks = CounterMetricFamily(
            "tidegate_picker_token_checks",
            "Answers of engines that were compared with the tokens that the picker computes, by"
            " result: agreed or differed.",
            labels=["pool", "result"],
        )
        for (pool, equal), count in list(self._checks.items()):
            checks.add_metric([pool, "agreed" if equal else "differed"], count)
        yield checks


def show_replicas(
    registry: CollectorRegistry,
    replicas: Callable[[], Iterable[Replica]],
    suspicion: Suspicion,
    placement: Placement,
    scales: Scales,
    limits: Limits,
    pools: Callable[[], Mapping[str, Pool]],
    waiting: Callable[[], Mapping[tuple[str, str], int]],
) -> None:
    """Register the metrics of replicas, of their deaths, versions, texts and slots."""
    ReplicaMetrics(registry, replicas)
    DeathMetrics(registry, suspicion)
    VersionMetrics(registry, placement)
    ScaleMetrics(registry, scales)
    SlotMetrics(registry, limits, pools, waiting)
