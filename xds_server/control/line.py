"""The line of changes: one at a time, in the order of the calls.

Rules:

1. A change that has begun is completed even if its caller no longer waits.
2. At most ``MAX_WAITING`` changes are in the line, and at most ``MAX_WAITING_CHARS`` of their
   texts; further ones are refused. A text alone in the line always has room.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from xds_server.control.operation import Busy

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

MAX_WAITING = 64
MAX_WAITING_CHARS = 32 * 2**20
"""Most characters of the texts in the line; one text has at most 4 MiB."""

_T = TypeVar("_T")


class Line:
    """Runs changes one after the other; see the module's rules."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._chars = 0

    async def run(self, change: Callable[[], Coroutine[Any, Any, _T]], chars: int = 0) -> _T:
        """Run a change in its place in the line, and return its result.

        Args:
            change: The change; what it raises is raised here.
            chars: Length of its text.

        Raises:
            Busy: Too many changes wait.
        """
        if len(self._tasks) >= MAX_WAITING:
            raise Busy(f"{MAX_WAITING} changes already wait for their turn; try again")
        if self._tasks and self._chars + chars > MAX_WAITING_CHARS:
            raise Busy("large fleets already wait for their turn; try again")
        task = asyncio.create_task(self._alone(change))

        def done(_: object) -> None:
            self._tasks.discard(task)
            self._chars -= chars
            if not task.cancelled():
                task.exception()  # asyncio logs an exception that is never read

        self._tasks.add(task)
        self._chars += chars
        task.add_done_callback(done)
        return await asyncio.shield(task)

    async def _alone(self, change: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        async with self._lock:
            return await change()

    async def stop(self) -> None:
        """Complete the changes in the line."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
