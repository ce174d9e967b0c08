"""Metrics of the other pickers of a group, computed at a scrape.

Rule: a member that is not connected has no age: none is not the same as 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric


class ShownMember(Protocol):
    """What is shown of a member; ``MemberState`` has it."""

    @property
    def address(self) -> str:
        """Where it is dialled."""

    @property
    def caught_up(self) -> bool:
        """Whether it is connected and known."""

    @property
    def silent_s(self) -> float | None:
        """Seconds since it was heard; ``None`` = not connected."""

    @property
    def received_bytes(self) -> int:
        """Bytes received from it."""

    @property
    def connections_lost(self) -> int:
        """Connections to it that ended."""


class GroupMetrics(Collector):
    """Members, age of what is known of them, bytes and lost connections, by address.

    Args:
        registry: Registry of the metrics.
        members: Returns the members of the group but the picker itself.
    """

    def __init__(
        self, registry: CollectorRegistry, members: Callable[[], Iterable[ShownMember]]
    ) -> None:
        self._members = members
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        up = GaugeMetricFamily(
            "tidegate_picker_group_member_up",
            "1 while the member of the group is connected and its state is known.",
            labels=["member"],
        )
        silent = GaugeMetricFamily(
            "tidegate_picker_group_silent_seconds",
            "Time since records of the member were read; no sample while it is not connected.",
            labels=["member"],
        )
        received = CounterMetricFamily(
            "tidegate_picker_group_received_bytes",
            "Bytes of records that the member sent.",
            labels=["member"],
        )
        lost = CounterMetricFamily(
            "tidegate_picker_group_connections_lost",
            "Connections to the member that ended.",
            labels=["member"],
        )
        for each in self._members():
            up.add_metric([each.address], float(each.caught_up))
            if each.silent_s is not None:
                silent.add_metric([each.address], each.silent_s)
            received.add_metric([each.address], each.received_bytes)
            lost.add_metric([each.address], each.connections_lost)
        yield from (up, silent, received, lost)
