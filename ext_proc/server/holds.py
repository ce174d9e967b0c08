"""Groups requests that go to the same replica and releases them together.

Rules:

1. The first member opens a group and waits for the time given to it; later members join.
2. All members are released when that time is over, when the group has ``GROUP`` members, or when
   the first member's stream ends for any reason.
3. A wait is at most ``MOST_S``, and at most ``MAX_GROUPS`` groups are open; requests beyond that do
   not wait.

The first member yields to the event loop repeatedly instead of setting a timer: the loop's timers
count whole milliseconds, and a hold is shorter than one. Other tasks run meanwhile. An idle loop
spins for at most half a millisecond, and only where the request rate makes a companion likely.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP: Final = 4
MOST_S: Final = 0.0005
MAX_GROUPS: Final = 1_024

Key = tuple[str, str]
"""Pool and replica address."""


class _Group:
    __slots__ = ("gone", "members")

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.members = 1


class Holds:
    """The open groups of a picker.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._groups: dict[Key, _Group] = {}
        self.held = 0
        """Number of requests that waited."""

    def __repr__(self) -> str:
        return f"<Holds groups={len(self._groups)} held={self.held}>"

    async def wait(self, key: Key, hold_s: float) -> None:
        """Join the group of ``key`` or open it, and wait at most ``hold_s`` seconds."""
        group = self._groups.get(key)
        if group is not None:
            self.held += 1
            group.members += 1
            if group.members >= GROUP:
                self._close(key, group)
            else:
                await group.gone.wait()
            return
        if len(self._groups) >= MAX_GROUPS:
            return
        self.held += 1
        group = self._groups[key] = _Group()
        deadline = self._clock() + min(hold_s, MOST_S)
        try:
            while not group.gone.is_set() and self._clock() < deadline:  # noqa: ASYNC110 - see above
                await asyncio.sleep(0)
        finally:
            self._close(key, group)

    def _close(self, key: Key, group: _Group) -> None:
        group.gone.set()
        if self._groups.get(key) is group:
            del self._groups[key]
