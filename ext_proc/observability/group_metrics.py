"""Metrics of the other pickers of a group, computed at a scrape.

Rule: a member that is not connected has no age: none is not the same as 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ext_proc.observability.counts import filled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


def of_group(members: Iterable[ShownMember]) -> Iterator[Metric]:
    """Yield whether members are up, the age of what is known of them, bytes, lost connections.

    Args:
        members: The members of the group but the picker itself.
    """
    shown, label = list(members), ["member"]
    yield filled(
        GaugeMetricFamily(
            "tidegate_picker_group_member_up",
            "1 while the member of the group is connected and its state is known.",
            labels=label,
        ),
        (([each.address], each.caught_up) for each in shown),
    )
    yield filled(
        GaugeMetricFamily(
            "tidegate_picker_group_silent_seconds",
            "Time since records of the member were read; no sample while it is not connected.",
            labels=label,
        ),
        (([each.address], each.silent_s) for each in shown if each.silent_s is not None),
    )
    yield filled(
        CounterMetricFamily(
            "tidegate_picker_group_received_bytes",
            "Bytes of records that the member sent.",
            labels=label,
        ),
        (([each.address], each.received_bytes) for each in shown),
    )
    yield filled(
        CounterMetricFamily(
            "tidegate_picker_group_connections_lost",
            "Connections to the member that ended.",
            labels=label,
        ),
        (([each.address], each.connections_lost) for each in shown),
    )
