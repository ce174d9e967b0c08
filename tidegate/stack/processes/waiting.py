"""Polling until a probe succeeds, with a time limit and an early end if a child crashes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import aiohttp

from tidegate.stack.processes.supervisor import CrashError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from tidegate.stack.processes.supervisor import Supervisor

POLL_S: Final = 0.02
"""First pause between two probes, seconds; it doubles up to ``MAX_POLL_S``."""
MAX_POLL_S: Final = 0.2
LOOK_TIMEOUT_S: Final = 5.0
"""Time limit of one probe, seconds."""


class StackError(RuntimeError):
    """The stack did not reach the expected state."""


async def wait_until(
    look: Callable[[], Awaitable[str | None]],
    what: str,
    *,
    timeout_s: float,
    supervisors: Iterable[Supervisor] = (),
) -> None:
    """Poll ``look`` until it returns ``None``; any other result says what is still missing.

    Raises:
        CrashError: A supervised child crashed.
        StackError: The time limit passed; the message contains ``what`` and the last result.
    """
    watched = tuple(supervisors)
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    pause = POLL_S
    while True:
        missing = await look()
        if missing is None:
            return
        for supervisor in watched:
            if supervisor.crash is not None:
                raise CrashError(supervisor.crash)
        if loop.time() >= end:
            raise StackError(f"{what} not ready after {timeout_s:g} s: {missing}")
        await asyncio.sleep(pause)
        pause = min(pause * 2, MAX_POLL_S)


async def http_ok(session: aiohttp.ClientSession, url: str) -> str | None:
    """Probe a URL: return ``None`` for status 200, else a description of the failure."""
    try:
        timeout = aiohttp.ClientTimeout(total=LOOK_TIMEOUT_S)
        async with session.get(url, timeout=timeout) as answer:
            if answer.status == 200:  # noqa: PLR2004 - HTTP OK
                return None
            return f"{url} answers {answer.status}"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return f"{url}: {error or type(error).__name__}"
