"""The end of a server of aiohttp that runs in a test's process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import web

ACCEPTED = 3
"""Turns of the event loop after which the server knows a connection that was accepted."""


async def end(runner: web.AppRunner) -> None:
    """Stop a server, also connections that its port accepted just before.

    Without the turns such a connection comes after the server has closed all that it knew, stays
    open, and fails the test during which it is collected.
    """
    for site in runner.sites:
        await site.stop()
    for _ in range(ACCEPTED):
        await asyncio.sleep(0)
    await runner.cleanup()
