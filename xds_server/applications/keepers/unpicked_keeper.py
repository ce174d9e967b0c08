"""The keeper of bounds: tells Envoys how many requests without a pick they may let go at once.

Rules:

1. Every ``EVERY_S`` seconds it derives the bounds from pickers' reports (``unpicked`` beside this),
   and publishes them if they differ from those published last. That makes no revision.
2. It waits while a publication runs. A failure is logged and tried again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from xds_server.applications.keepers.unpicked import UnpickedBounds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xds_server.applications.traffic.lives import Key
    from xds_server.applications.traffic.replicas import State
    from xds_server.fleet.members.placed import Unpicked
    from xds_server.fleet.model.fleet import Fleet

    class InForce(Protocol):
        """The fleet in force, and the publication of bounds."""

        @property
        def revision(self) -> int:
            """Number of its revision; 0 if there is none yet."""

        @property
        def fleet(self) -> Fleet:
            """The fleet in force as clients get it."""

        async def publish_unpicked(self, unpicked: Unpicked) -> None:
            """Publish the fleet in force with these bounds of requests without a pick."""


EVERY_S: Final = 2.0

_log = structlog.get_logger(__name__)


class UnpickedKeeper:
    """Publishes the bounds; see the module's rules.

    Args:
        control: The fleet in force.
        states: Returns the states of replicas, as pickers report them.
        settled: Whether no publication runs.
    """

    def __init__(
        self,
        control: InForce,
        states: Callable[[], Mapping[Key, State]],
        settled: Callable[[], bool],
    ) -> None:
        self._control = control
        self._states = states
        self._settled = settled
        self._bounds = UnpickedBounds()
        self._published: Unpicked = ()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - rule 2
                _log.exception("bounds_not_told")

    async def look(self) -> None:
        """Look once, and publish what has changed."""
        if not self._control.revision or not self._settled():
            return
        bounds = self._bounds.look(self._control.fleet, self._states())
        if bounds != self._published:
            await self._control.publish_unpicked(bounds)
            self._published = bounds
