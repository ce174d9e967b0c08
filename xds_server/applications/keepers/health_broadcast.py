"""The health broadcaster: publishes to all clients which replicas the pickers find sick.

Rules:

1. The set of sick replicas is computed again after each revision and after each report that differs
   from the one before. It is published if it differs from the set published last. It makes no
   revision: it is observed state, not desired state.
2. At most one publication per ``EVERY_S`` (seconds); changes in between go with the next one.
3. A failed publication is logged and tried again after the next report.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from xds_server.fleet.findings import combine, to_publish

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xds_server.control.fleet_control import Control
    from xds_server.fleet.findings import Findings, PublishedSick, Sick

EVERY_S: Final = 0.2
"""Least time between two publications, in seconds."""

_log = structlog.get_logger(__name__)


class HealthReports(Protocol):
    """Source of the pickers' findings."""

    def findings(self) -> Iterable[Findings]:
        """Return the findings of each reporting group of pickers."""


class HealthBroadcaster:
    """Publishes the pickers' findings to all clients; see the module's rules.

    Args:
        reporting: Source of the findings.
        control: Publishes the sick replicas.
    """

    def __init__(self, reporting: HealthReports, control: Control) -> None:
        self._reporting = reporting
        self._control = control
        self._changed = asyncio.Event()
        self._published: PublishedSick = {}

    def sick(self) -> tuple[Sick, ...]:
        """Return all replicas that pickers currently report as sick."""
        control = self._control
        if not control.revision:
            return ()
        reports = self._reporting.findings()
        return combine(control.fleet, control.incarnations, reports, self._published)

    @property
    def published(self) -> int:
        """Number of replicas published as sick."""
        return sum(len(names) for names in self._published.values())

    def notify(self) -> None:
        """Signal that a report or the fleet has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Publish changes until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._publish()
            except Exception:  # noqa: BLE001 - rule 3
                _log.exception("sick_replicas_not_told")
            await asyncio.sleep(EVERY_S)

    async def _publish(self) -> None:
        sick = self.sick()
        new = to_publish(sick)
        if new == self._published:
            return
        await self._control.publish_sick(new)
        self._published = new
        _log.info("sick_replicas_told", replicas=self.published, found=len(sick))
