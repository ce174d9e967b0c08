"""Tells all clients which replicas the pickers find sick.

Rules:

1. What is told is combined anew after each report that differs and after each revision, and
   published where it differs from what was told before. It is no revision: it is seen, not wished.
2. At most one publication in ``EVERY_S``; what comes in between is told with the next.
3. A failure to publish is logged, and the next report tries again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from xds_server.fleet.findings import combine, told_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xds_server.fleet.findings import Findings, Sick, Told
    from xds_server.fleet.model.fleet import Fleet

EVERY_S: Final = 0.2

_log = structlog.get_logger(__name__)


class HealthReports(Protocol):
    """Who knows the pickers' findings."""

    def findings(self) -> Iterable[Findings]:
        """Return what each picker that reports finds."""


class HealthPublisher(Protocol):
    """Who publishes."""

    @property
    def fleet(self) -> Fleet:
        """The fleet in force."""

    @property
    def revision(self) -> int:
        """Its number; 0 if there is none yet."""

    @property
    def incarnations(self) -> Mapping[str, int]:
        """The incarnation of each endpoint that has not its first one."""

    async def tell(self, told: Told) -> None:
        """Publish the fleet in force with these replicas marked sick."""


class HealthBroadcaster:
    """Stands between reports and clients; see the module's rules.

    Args:
        reporting: Who knows the findings.
        control: Who publishes.
    """

    def __init__(self, reporting: HealthReports, control: HealthPublisher) -> None:
        self._reporting = reporting
        self._control = control
        self._news = asyncio.Event()
        self._told: Told = {}

    def sick(self) -> tuple[Sick, ...]:
        """Return all replicas that pickers find sick now."""
        control = self._control
        if not control.revision:
            return ()
        reports = self._reporting.findings()
        return combine(control.fleet, control.incarnations, reports, self._told)

    @property
    def told(self) -> int:
        """How many replicas everybody is told of."""
        return sum(len(names) for names in self._told.values())

    def hear(self) -> None:
        """Note that a report or the fleet has changed."""
        self._news.set()

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._tell()
            except Exception:  # noqa: BLE001 - rule 3
                _log.exception("sick_replicas_not_told")
            await asyncio.sleep(EVERY_S)

    async def _tell(self) -> None:
        sick = self.sick()
        told = told_of(sick)
        if told == self._told:
            return
        await self._control.tell(told)
        self._told = told
        _log.info("sick_replicas_told", replicas=self.told, found=len(sick))
