"""The placement keeper: tells Envoys which replica has which model, for when no picker answers.

Rules:

1. Every ``EVERY_S`` seconds it derives from pickers' reports what is to be listed
   (``placed`` beside this), and publishes it if it differs from what was published last. That
   makes no revision: it is observed state.
2. It looks only if a report, a picker's leaving or the fleet has changed something, and at least
   every ``SOMETIMES_S``, as reports become too old.
3. It waits while a publication runs: placement never overtakes an operator's change.
4. A failure is logged and tried again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from xds_server.applications.keepers.placed import placed_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from xds_server.applications.traffic.placements import PlacementBook
    from xds_server.control.fleet_control import Control
    from xds_server.fleet.members.members import Placed
    from xds_server.fleet.model.fleet import Fleet


EVERY_S: Final = 2.0
SOMETIMES_S: Final = 30.0

_log = structlog.get_logger(__name__)


class PlacementKeeper:
    """Publishes what pickers report of placement; see the module's rules.

    Args:
        control: The fleet in force.
        book: What pickers report.
        settled: Whether no publication runs.
        clock: Monotonic seconds.
        leaving: Returns the models that leave replicas: endpoint id and model.
    """

    def __init__(
        self,
        control: Control,
        book: PlacementBook,
        settled: Callable[[], bool],
        clock: Callable[[], float],
        leaving: Callable[[], Collection[tuple[str, str]]] = frozenset,
    ) -> None:
        self._control = control
        self._book = book
        self._settled = settled
        self._clock = clock
        self._leaving = leaving
        self._published: Placed = ()
        self._seen: tuple[int, Fleet, Collection[tuple[str, str]]] | None = None
        """The book's changes, the fleet and what leaves replicas, as they were looked at last."""
        self._looked = 0.0

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - rule 4
                _log.exception("placement_not_told")

    async def look(self) -> None:
        """Look once, and publish what has changed."""
        if not self._control.revision or not self._settled():
            return
        changes, fleet, now = self._book.changes, self._control.fleet, self._clock()
        leaving = self._leaving()
        if self._seen is not None and now - self._looked < SOMETIMES_S:
            known, looked_at, left = self._seen
            if known == changes and looked_at is fleet and left == leaving:
                return
        placed = await asyncio.to_thread(placed_in, fleet, self._book.last(), leaving)
        if placed != self._published:
            await self._control.publish_placed(placed)
            self._published = placed
        self._seen, self._looked = (changes, fleet, leaving), now
