"""Waiting for draining endpoints to finish their requests, by the pickers' reports. Pure.

Rules:

1. A stage that waits begins when the pickers report no requests in flight on its endpoints, or at
   its hold deadline. Without pickers nothing is in flight.
2. A connected picker's zero counts once its report names the response that the picker acknowledged
   last: an older one may lack its last picks. Such a report is waited for ``REPORT_PATIENCE_S``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate_api.names import POOL_TYPE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from xds_server.protocol.client import Client
    from xds_server.protocol.publication import PickerLoad, Stage

REPORT_PATIENCE_S: Final = 5.0
"""A picker that has lost its report stream opens a new one within 2 s."""


class Drains:
    """The pickers' last reports."""

    def __init__(self) -> None:
        self._loads: dict[str, PickerLoad] = {}

    def reported(self, reports: Mapping[str, PickerLoad]) -> None:
        """Replace the last report of each reporting picker, by node id."""
        self._loads = dict(reports)

    def waits(self, stage: Stage, pickers: Collection[Client]) -> bool:
        """Return whether a stage waits for reports at all."""
        return bool(stage.wait_for_drained) and (bool(self._loads) or bool(pickers))

    def held_until(self, stage: Stage, since: float, pickers: Collection[Client]) -> float:
        """Return when a stage begins if no further report arrives, monotonic seconds.

        Args:
            stage: The stage.
            since: When the stage before it was answered.
            pickers: The connected pickers that publications wait for.
        """
        until = since + stage.grace_s
        if not self.waits(stage, pickers):
            return until
        patience = since + stage.hold_deadline_s
        if self._drained(stage):
            waited = 0.0 if self._all_reported(pickers) else REPORT_PATIENCE_S
            patience = min(patience, since + waited)
        return max(until, patience)

    def _drained(self, stage: Stage) -> bool:
        ids = stage.wait_for_drained
        return not any(load.in_flight.get(id_) for load in self._loads.values() for id_ in ids)

    def _all_reported(self, pickers: Collection[Client]) -> bool:
        """Return whether each picker has reported since it applied its last response."""
        for client in pickers:
            load = self._loads.get(client.node)
            if load is None or load.taken != client.stream.acknowledged(POOL_TYPE):
                return False
        return True
