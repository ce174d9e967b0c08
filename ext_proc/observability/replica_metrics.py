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

from ext_proc.observability.counts import MAX_SERIES, Scraped, filled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from ext_proc.observability.traffic import EndpointCounts
    from ext_proc.routing.health.placement import Placement
    from ext_proc.routing.limits import Limits
    from ext_proc.routing.router import Router
    from ext_proc.routing.scales import Scales
    from ext_proc.routing.state.candidates import Replica
    from ext_proc.routing.suspicion import Suspicion
    from ext_proc.routing.values.pool import Pool


def of_replicas(replicas: Iterable[Replica], now: float) -> Iterator[Metric]:
    """Yield queue, age of readings, and response speed, by endpoint; ``now`` is monotonic."""
    shown = list(islice(replicas, MAX_SERIES))
    yield filled(
        GaugeMetricFamily(
            "tidegate_picker_replica_queue",
            "Requests in the replica: this picker's in flight, and others' that wait there.",
            labels=["endpoint"],
        ),
        (([each.key.id], each.load.in_flight + (each.others_queued(now) or 0.0)) for each in shown),
    )
    yield filled(
        GaugeMetricFamily(
            "tidegate_picker_replica_reading_age_seconds",
            "Age of the oldest reading of the replica that is in use.",
            labels=["endpoint"],
        ),
        (
            ([each.key.id], now - min(reading.at for reading in each.readings))
            for each in shown
            if each.readings
        ),
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
    for family, name in ((first, "first_byte_s"), (speed, "bytes_per_s")):
        for replica in shown:
            for pool, served in replica.served.items():
                value = getattr(served, name).value
                if value is not None:
                    family.add_metric([replica.key.id, pool], value)
        yield family


def of_deaths(suspicion: Suspicion) -> Iterator[Metric]:
    """Yield the counts of deaths and suspects, equal in all workers of a picker."""
    deaths = suspicion.deaths
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
        "Request bodies that are refused because replicas died with them; the same in each worker.",
        len(deaths.condemned),
    )
    yield CounterMetricFamily(
        "tidegate_picker_confined_requests",
        "Requests that were sent only to replicas that had died with similar ones, or had to "
        "wait for these.",
        suspicion.confined,
    )


def of_versions(placement: Placement) -> CounterMetricFamily:
    """Return the requests that another version than their variant's may have answered."""
    return filled(
        CounterMetricFamily(
            "tidegate_picker_version_moved_requests",
            "Requests without a version, for a variant with model_version, that a replica was sent "
            "since the second look before the one that found it answering by another version.",
            labels=["pool", "variant"],
        ),
        list(placement.moved.items()),
    )


def of_scales(scales: Scales) -> GaugeMetricFamily:
    """Return the bytes of prompts per token, as far as they were learned, of pools' models."""
    return filled(
        GaugeMetricFamily(
            "tidegate_picker_bytes_per_token",
            "Bytes of a prompt's text for each of its tokens, learned from engines' counts; an "
            "empty model is the pool as a whole.",
            labels=["pool", "model"],
        ),
        (((pool, model), scale.force) for pool, model, scale in scales.each()),
    )


def of_slots(
    limits: Limits, pools: Mapping[str, Pool], waiting: Mapping[tuple[str, str], int]
) -> Iterator[Metric]:
    """Yield how many requests replicas run at once, and how many they have, for autoscalers.

    Args:
        limits: The slots.
        pools: The pools, by name.
        waiting: The requests that wait in the picker, by pool and model.
    """
    pools, held = dict(pools), Counter[str]()
    for (pool, _), count in waiting.items():
        held[pool] += count
    yield filled(
        GaugeMetricFamily(
            "tidegate_picker_slots",
            "Requests that the replica runs at once, by the source of this; an empty model is all"
            " that it serves.",
            labels=["pool", "endpoint", "model", "source"],
        ),
        (
            ([name, each.key.id, model, known.source], known.slots)
            for name, pool in pools.items()
            for each in pool.endpoints
            for model, known in limits.of(each.key)
        ),
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
    for name, each in islice(pools.items(), MAX_SERIES):
        usage = limits.usage(each).values()
        if usage:
            used.add_metric([name], max(one.utilisation for one in usage))
            needed.add_metric([name], max(one.needed(held[name]) for one in usage))
        waits.add_metric([name], held[name])
    yield from (used, needed, waits)


def of_requests(
    notes: Iterable[tuple[str, str, str]],
    counts: Mapping[tuple[str, str], EndpointCounts],
    checks: Mapping[tuple[str, bool], int],
) -> Iterator[Metric]:
    """Yield what is told of replicas besides their conditions, and their requests, by endpoint.

    Args:
        notes: Pool, endpoint and name of what is wrong with replicas.
        counts: Requests by pool and endpoint.
        checks: Answers of engines about tokens, by pool and whether they agreed.
    """
    labels = ["pool", "endpoint"]
    yield filled(
        GaugeMetricFamily(
            "tidegate_picker_replica_note",
            "1 while something is wrong with the replica that keeps no requests from it: slow,"
            " slower, queue, tokens, kv-events.",
            labels=[*labels, "note"],
        ),
        ((series, 1) for series in notes),
    )
    counted = list(islice(counts.items(), MAX_SERIES))
    yield filled(
        CounterMetricFamily(
            "tidegate_picker_replica_requests", "Requests that have ended.", labels=labels
        ),
        ((key, each.requests) for key, each in counted),
    )
    yield filled(
        CounterMetricFamily(
            "tidegate_picker_replica_failed_requests",
            "Those of them that failed by a fault of the service.",
            labels=labels,
        ),
        ((key, each.failed) for key, each in counted),
    )
    took = SummaryMetricFamily(
        "tidegate_picker_replica_request_seconds",
        "Seconds of requests that ended well, from their start at the proxy to their end.",
        labels=labels,
    )
    for key, each in counted:
        if each.timed:
            took.add_metric(list(key), each.timed, each.timed_s)
    yield took
    yield filled(
        CounterMetricFamily(
            "tidegate_picker_token_checks",
            "Answers of engines that were compared with the tokens that the picker computes, by"
            " result: agreed or differed.",
            labels=["pool", "result"],
        ),
        [
            ([pool, "agreed" if equal else "differed"], count)
            for (pool, equal), count in list(checks.items())
        ],
    )


def show_replicas(registry: CollectorRegistry, router: Router) -> None:
    """Register the metrics of replicas, of their deaths, versions, texts and slots."""

    def families() -> Iterator[Metric]:
        yield from of_replicas(router.registry.replicas(), time.monotonic())
        yield from of_deaths(router.suspicion)
        yield of_versions(router.placement)
        yield of_scales(router.scales)
        yield from of_slots(router.limits, router.pools, router.queue.counts())

    Scraped(registry, families)
