"""Metrics of the control server.

Each label has few values: an unknown resource type counts as ``other``; outcomes and audiences are
closed sets. Node names are never labels.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Literal, get_args

from prometheus_client import Counter, Gauge, Histogram

from tidegate_api.names import SHORT_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

_Audience = Literal["envoy", "picker"]
_ACK_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15)
_PUBLICATION_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 30, 60)


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

    def show_unwritten(self, held: Callable[[], int], fault: Callable[[], str]) -> None:
        """Set the functions that return the number of revisions held and the store's fault."""
        self._unwritten.set_function(held)
        self._store_writable.set_function(lambda: float(not fault()))

    def show_published_sick(self, count: Callable[[], int]) -> None:
        """Set the function that returns the number of replicas published as sick."""
        self._published_sick.set_function(count)

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
        self._pushes.labels(_type_label(type_url)).inc()

    def acked(self, type_url: str, waited_s: float) -> None:
        """Record an acknowledgement and its delay in seconds."""
        self._acks.labels(_type_label(type_url)).observe(waited_s)

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
