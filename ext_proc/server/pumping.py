"""Lets waiting requests go when there may be room for them.

Rules:

1. After a request has ended, those that wait are tried once in this iteration of the loop, however
   many ended.
2. While any waits, they are tried every ``LOOK_S`` as well: a limit, a replica or the end of
   abandoned work makes room without a sign, and waits end.
3. Nothing is scheduled while none waits.
4. Before they are tried, what peer workers have sent is read: of what these began or ended nothing
   else tells a worker to which no request comes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.router import Router

LOOK_S: Final = 0.05

_log = structlog.stdlib.get_logger("ext_proc.server.service")


class Pumping:
    """Calls ``Router.pump``; see the module's rules.

    Args:
        router: The request router.
        clock: Monotonic seconds.
        wall_clock: Unix seconds.
        refresh: Reads what peer workers have sent; ``None`` = there are none.
    """

    def __init__(
        self,
        router: Router,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        refresh: Callable[[], None] | None = None,
    ) -> None:
        self._router = router
        self._clock = clock
        self._wall_clock = wall_clock
        self._refresh = refresh
        self._soon = False
        self._timer: asyncio.TimerHandle | None = None
        router.on_room = self.on_room

    def on_room(self) -> None:
        """Have the requests that wait tried in this iteration of the loop."""
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._pump)

    def begin(self) -> None:
        """Note that a request waits."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        self._pump()
        if self._router.queue.count:
            self.begin()

    def _pump(self) -> None:
        self._soon = True  # what is read now is tried now
        try:
            if self._refresh is not None:
                self._refresh()
        finally:
            self._soon = False
        try:
            self._router.pump(self._clock(), self._wall_clock())
        except Exception:  # noqa: BLE001 - the next look tries again
            _log.exception("queue_failed")
