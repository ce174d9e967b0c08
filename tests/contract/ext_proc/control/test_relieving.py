"""A real event loop that has no time left."""

from __future__ import annotations

import asyncio
import time

from ext_proc.control.relieving import relieve
from ext_proc.routing.relief import PASS, USUAL, Relief

EVERY_S = 0.05
PATIENCE_S = 60.0


async def test_a_loop_that_computes_all_the_time_gets_relief_and_gives_it_back():
    """However many others use the machine's CPUs."""
    relief, worked = Relief(), asyncio.get_running_loop()

    def work():
        until = time.thread_time() + EVERY_S / 5
        while time.thread_time() < until:
            pass
        if relief.level < PASS:
            worked.call_soon(work)

    watching = asyncio.create_task(relieve(relief, EVERY_S))
    work()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while relief.level != PASS:  # noqa: ASYNC110 - a level that is polled, as exchanges do
                await asyncio.sleep(EVERY_S)
            while relief.level != USUAL:  # noqa: ASYNC110 - same
                await asyncio.sleep(EVERY_S)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
