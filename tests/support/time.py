"""Time for tests that do not wait.

Rules:

1. ``Clock`` moves the clock of the running event loop. Time goes on as before, and ``advance`` adds
   to it: what waits for less than that is due at once. It works beside sockets, so a test sees to
   it first that everything else has happened.
2. ``virtual_time`` makes a loop that never waits: where nothing is ready, its clock jumps to the
   next thing that is due. Only for tests without sockets, threads and processes, whose answers the
   jump would overtake.
3. Both end with the test and leave the loop's clock ahead by what they added, never behind.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Clock:
    """Moves the clock of the running event loop forward; what is added counts for all of them."""

    def __init__(self) -> None:
        self._loop: Any = asyncio.get_running_loop()
        if not hasattr(self._loop, "real_time"):
            real = self._loop.time
            self._loop.real_time, self._loop.added_s = real, 0.0
            self._loop.time = lambda loop=self._loop: real() + loop.added_s

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass at once."""
        self._loop.added_s += seconds

    async def until(self, true: Callable[[], Any], limit_s: float = 60.0) -> None:
        """Let the loop work until ``true`` returns true.

        Raises:
            TimeoutError: It did not within the limit of real time.
        """
        end = self._loop.real_time() + limit_s
        while not true():
            if self._loop.real_time() > end:
                raise TimeoutError("the condition of this test did not come true")
            await asyncio.sleep(0)


@contextmanager
def virtual_time() -> Iterator[Clock]:
    """Make the running loop jump to the next timer where it would wait for it."""
    loop: Any = asyncio.get_running_loop()
    clock = Clock()
    select = loop._selector.select

    def jump(timeout: float | None = None) -> Any:
        events = select(0 if timeout else timeout)
        if timeout and not events:
            clock.advance(timeout)
        return events

    loop._selector.select = jump
    try:
        yield clock
    finally:
        del loop._selector.select
