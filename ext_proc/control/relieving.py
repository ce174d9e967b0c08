"""Looks once a second at how much of its time the event loop's thread has something to compute.

Where the system tells it (Linux), time in which the thread waited for a CPU counts as well: others
may use the CPUs, or a bound of its container may keep it from them.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from ext_proc.routing.relief import NAMES

if TYPE_CHECKING:
    from ext_proc.routing.relief import Relief

LOOK_S: Final = 1.0
_SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")
"""Nanoseconds for which the thread ran, and waited to run (Documentation/scheduler in Linux)."""

_log = structlog.stdlib.get_logger("ext_proc")


def wanted_s() -> float:
    """Return the seconds for which this thread ran, or waited to."""
    try:
        ran, waited, _ = _SCHEDSTAT.read_text("ascii").split()
        return (int(ran) + int(waited)) * 1e-9
    except (OSError, ValueError):
        return time.thread_time()


async def relieve(relief: Relief, every_s: float = LOOK_S) -> NoReturn:
    """Look until cancelled; log each change of the level.

    Args:
        relief: Takes the looks.
        every_s: Seconds between two looks.
    """
    while True:
        began, wanted = time.monotonic(), wanted_s()
        await asyncio.sleep(every_s)
        share = (wanted_s() - wanted) / (time.monotonic() - began)
        if relief.look(share):
            _log.warning("relief_changed", level=NAMES[relief.level], busy=round(share, 2))
