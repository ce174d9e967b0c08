"""Metrics of the control server.

Each label has few values: an unknown resource type counts as ``other``; outcomes and audiences are
closed sets. Node names are never labels.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidegate_api.names import SHORT_TYPE
from tidegate_common.tls.metrics import CertificateMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client import CollectorRegistry

    from tidegate_common.tls.settings import Secured

MAX_VARIANTS: Final = 1000
"""Most variants that are shown."""
_Audience = Literal["envoy", "picker"]
_ACK_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15)
_PUBLICATION_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 30, 60)


class Assessment(NamedTuple):
    """What is known of the whole at one moment."""

    level: int = 0
    """The verdict: 0 OK, 1 DEGRADED, 2 OUTAGE."""
    kinds: Mapping[str, int] = MappingProxyType({})
    """Number of its reasons by kind."""
    variants: Sequence[tuple[str, str, int, int]] = ()
    """Pool, variant, number of replicas, and of the usable ones."""


class OperationsNow(NamedTuple):
    """What operations on models come to at one moment; dry runs are none of them."""

    waiting: int = 0
    running: int = 0
    age_s: float | None = None
    """Seconds since the oldest open one began; ``None`` = none is open."""
    still_s: float | None = None
    """Longest time, in seconds, that a running one has taken no step; ``None`` = none runs."""
    left: Mapping[str, int] = MappingProxyType({})
    """Replicas that could not be brought back, by pool."""
    ended: Mapping[tuple[str, str], int] = MappingProxyType({})
    """Number that have ended, by kind and outcome."""


class XdsMetrics:
    """The control server's metrics, registered in ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._streams = Gauge(
            "tidegate_xds_streams",
            "Open ADS streams.",
            ["audience", "protocol"],
            registry=registry,
        )
        self._pushes = Counter(
            "tidegate_xds_pushes", "Messages sent to clients.", ["type"], registry=registry
        )
        self._pushes_of: dict[str, Counter] = {}
        """By type URL, like ``_acks_of``: the series, as many as there are types served."""
        self._acks_of: dict[str, Histogram] = {}
        self._acks = Histogram(
            "tidegate_xds_ack_seconds",
            "From sending a message to its acknowledgement.",
            ["type"],
            buckets=_ACK_BUCKETS_S,
            registry=registry,
        )
        self._nacks = Counter(
            "tidegate_xds_nacks", "Messages that clients refused.", ["type"], registry=registry
        )
        self._resources = Gauge(
            "tidegate_xds_resources",
            "Resources in force.",
            ["audience", "type"],
            registry=registry,
        )
        self._publications = Histogram(
            "tidegate_xds_publication_seconds",
            "From publishing to the end of the publication.",
            ["state"],
            buckets=_PUBLICATION_BUCKETS_S,
            registry=registry,
        )
        self._revision = Gauge(
            "tidegate_xds_revision", "Number of the fleet revision in force.", registry=registry
        )

        self._quarantined = Gauge(
            "tidegate_xds_quarantined_clients",
            "Connected clients that refused several changes in a row that others accept.",
            ["audience"],
            registry=registry,
        )
        self._shared = Gauge(
            "tidegate_xds_shared_nodes",
            "Node ids under which several clients are connected.",
            ["audience"],
            registry=registry,
        )
        self._published_sick = Gauge(
            "tidegate_xds_told_replicas",
            "Replicas that pickers find sick and that all clients leave alone.",
            registry=registry,
        )

        self._unwritten = Gauge(
            "tidegate_xds_unwritten_revisions",
            "Revisions that are held in memory because the store cannot be written.",
            registry=registry,
        )
        self._store_writable = Gauge(
            "tidegate_xds_store_writable",
            "1 if the last write to the store succeeded.",
            registry=registry,
        )
        self._store_writable.set(1)

        self._verdict = _VerdictCollector(registry)
        self._certificate = CertificateMetrics(registry, "tidegate_xds")
        self._unwritten_audit = Gauge(
            "tidegate_xds_unwritten_audit_lines",
            "Lines of the record of admin calls that are not on disk.",
            registry=registry,
        )
        self._membership = _MembershipCollector(registry)
        self._operations = _OperationsCollector(registry)

    def show_operations(self, read: Callable[[], OperationsNow]) -> None:
        """Set the function that returns what operations on models come to."""
        self._operations.read = read

    def show_membership(
        self,
        pools: Callable[[], Iterable[tuple[str, Mapping[str, int]]]],
        sources: Callable[[], Iterable[tuple[str, str, bool]]],
    ) -> None:
        """Set the functions that return what was found.

        Args:
            pools: Returns each pool that finds replicas, and their number by state.
            sources: Returns each pool, source, and whether the source answers.
        """
        self._membership.pools, self._membership.sources = pools, sources

    def show_unwritten(self, held: Callable[[], int], fault: Callable[[], str]) -> None:
        """Set the functions that return the number of revisions held and the store's fault."""
        self._unwritten.set_function(held)
        self._store_writable.set_function(lambda: float(not fault()))

    def show_published_sick(self, count: Callable[[], int]) -> None:
        """Set the function that returns the number of replicas published as sick."""
        self._published_sick.set_function(count)

    def show_verdict(self, judge: Callable[[], Assessment]) -> None:
        """Set the function that returns the verdict, its reasons and the replicas."""
        self._verdict.judge = judge

    def show_certificate(self, secured: Secured | None) -> None:
        """Show the certificate of the server; ``None`` = it has no TLS."""
        self._certificate.secured = secured

    def show_audit(self, unwritten: Callable[[], int]) -> None:
        """Set the function that returns the number of audit lines that are not on disk."""
        self._unwritten_audit.set_function(unwritten)

    def show_clients(
        self, quarantined: Callable[[_Audience], int], shared: Callable[[_Audience], int]
    ) -> None:
        """Set the functions that count an audience's quarantined clients and shared node ids."""
        for audience in get_args(_Audience):
            self._quarantined.labels(audience).set_function(partial(quarantined, audience))
            self._shared.labels(audience).set_function(partial(shared, audience))

    def stream_opened(self, audience: str, protocol: str) -> None:
        """Count an opened stream; called once its client is identified."""
        self._streams.labels(audience, protocol).inc()

    def stream_closed(self, audience: str, protocol: str) -> None:
        """Count the end of a stream whose client was identified."""
        self._streams.labels(audience, protocol).dec()

    def pushed(self, type_url: str) -> None:
        """Count a message to a client."""
        counter = self._pushes_of.get(type_url)
        if counter is None:
            counter = self._pushes_of[type_url] = self._pushes.labels(_type_label(type_url))
        counter.inc()

    def acked(self, type_url: str, waited_s: float) -> None:
        """Record an acknowledgement and its delay in seconds."""
        histogram = self._acks_of.get(type_url)
        if histogram is None:
            histogram = self._acks_of[type_url] = self._acks.labels(_type_label(type_url))
        histogram.observe(waited_s)

    def nacked(self, type_url: str) -> None:
        """Count a rejected message."""
        self._nacks.labels(_type_label(type_url)).inc()

    def resources(self, audience: str, type_url: str, count: int) -> None:
        """Set the number of resources of a type that are in force for an audience."""
        self._resources.labels(audience, _type_label(type_url)).set(count)

    def published(self, state: str, elapsed_s: float) -> None:
        """Record the end of a publication and its duration in seconds."""
        self._publications.labels(state).observe(elapsed_s)

    def set_revision(self, number: int) -> None:
        """Set the number of the revision in force."""
        self._revision.set(number)


def _type_label(type_url: str) -> str:
    return SHORT_TYPE.get(type_url, "other")


class _VerdictCollector(Collector):
    """The verdict, computed once for each scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.judge: Callable[[], Assessment] = Assessment
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current values."""
        level, kinds, variants = self.judge()
        yield GaugeMetricFamily(
            "tidegate_xds_verdict",
            "What `tidegate status` says: 0 OK, 1 DEGRADED, 2 OUTAGE.",
            level,
        )
        reasons = GaugeMetricFamily(
            "tidegate_xds_reasons",
            "Reasons that `tidegate status` lists, by their kind; 0 = none.",
            labels=["kind"],
        )
        for kind, count in kinds.items():
            reasons.add_metric([kind], count)
        yield reasons
        replicas = GaugeMetricFamily(
            "tidegate_xds_replicas", "Replicas of the fleet in force.", labels=["pool", "variant"]
        )
        usable = GaugeMetricFamily(
            "tidegate_xds_usable_replicas",
            "Those that do not drain, and that fewer than half of the pickers leave alone.",
            labels=["pool", "variant"],
        )
        for pool, variant, count, good in variants[:MAX_VARIANTS]:
            replicas.add_metric([pool, variant], count)
            usable.add_metric([pool, variant], good)
        yield replicas
        yield usable


class _MembershipCollector(Collector):
    """What was found, computed at a scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.pools: Callable[[], Iterable[tuple[str, Mapping[str, int]]]] = tuple
        self.sources: Callable[[], Iterable[tuple[str, str, bool]]] = tuple
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current values."""
        members = GaugeMetricFamily(
            "tidegate_xds_found_replicas",
            "Replicas that were found, by state: active, draining, held (vanished, and kept until "
            "this is confirmed), waiting (not ready yet).",
            labels=["pool", "state"],
        )
        for pool, counts in self.pools():
            for state, count in counts.items():
                members.add_metric([pool, state], count)
        answers = GaugeMetricFamily(
            "tidegate_xds_source_answers",
            "1 if the last look at a source of replicas succeeded.",
            labels=["pool", "source"],
        )
        for pool, source, good in self.sources():
            answers.add_metric([pool, source], float(good))
        yield members
        yield answers


class _OperationsCollector(Collector):
    """What operations on models come to, computed at a scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.read: Callable[[], OperationsNow] = OperationsNow
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        now = self.read()
        ended = CounterMetricFamily(
            "tidegate_xds_model_operations",
            "Loads and unloads of models that have ended, by outcome: done, undone, failed (some "
            "replicas could not be brought back). Without dry runs.",
            labels=["kind", "outcome"],
        )
        for (kind, outcome), count in now.ended.items():
            ended.add_metric([kind, outcome], count)
        yield ended
        several = GaugeMetricFamily(
            "tidegate_xds_open_model_operations",
            "Loads and unloads of models that have not ended, by state: waiting (for another one "
            "on the same model), running.",
            labels=["state"],
        )
        several.add_metric(["waiting"], now.waiting)
        several.add_metric(["running"], now.running)
        yield several
        age = GaugeMetricFamily(
            "tidegate_xds_model_operation_age_seconds",
            "Time since the oldest open load or unload began; no sample where none is open.",
        )
        if now.age_s is not None:
            age.add_metric([], now.age_s)
        yield age
        still = GaugeMetricFamily(
            "tidegate_xds_model_operation_still_seconds",
            "Longest time that a running load or unload has taken no step; no sample where none "
            "runs.",
        )
        if now.still_s is not None:
            still.add_metric([], now.still_s)
        yield still
        left = GaugeMetricFamily(
            "tidegate_xds_stuck_model_replicas",
            "Replicas that a failed load or unload could not bring back, until a later one is "
            "done there.",
            labels=["pool"],
        )
        for pool, count in now.left.items():
            left.add_metric([pool], count)
        yield left
