"""Time limits that do not count what came while this process did not run."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OVERSLEPT_S: Final = 0.02
"""Delay of a timer from which on this process is known not to have run, seconds."""
READING_S: Final = 0.1
"""Time to read what peers sent meanwhile, seconds; only then are they late."""


@asynccontextmanager
async def awake_timeout(limit_s: float) -> AsyncIterator[None]:
    """Bound the time of a block, as ``asyncio.timeout`` does.

    After a pause of the process an event loop ends what is overdue in the same turn in which it
    reads what came in time. So where the limit is noticed late, what came is read first.

    Args:
        limit_s: Seconds.

    Raises:
        TimeoutError: The block took longer.
    """
    loop = asyncio.get_running_loop()
    due = loop.time() + limit_s
    timer: asyncio.TimerHandle
    async with asyncio.timeout(None) as bound:

        def expire(spare_s: float) -> None:
            nonlocal timer
            if spare_s and loop.time() - due > OVERSLEPT_S:
                timer = loop.call_later(spare_s, expire, 0.0)
            else:
                bound.reschedule(loop.time())

        timer = loop.call_at(due, expire, READING_S)
        try:
            yield
        finally:
            timer.cancel()
