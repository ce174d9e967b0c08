"""Steady stateless traffic during a failure, for the two loss phases."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidegate.demo.load import Tally, closed_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tidegate.demo.scene import Scene

WORKERS: Final = 6
MAX_S: Final = 30.0
"""Time limit of each wait in a phase, seconds."""
TICK_S: Final = 0.01
GENERATE_EVERY: Final = 2


@dataclass(slots=True)
class Traffic:
    """Continuous stateless requests; half complete a prompt, half classify an image."""

    tally: Tally = field(default_factory=Tally)

    async def progress(self, requests: int) -> None:
        """Wait until ``requests`` more requests have finished.

        Raises:
            TimeoutError: They did not finish within ``MAX_S``.
        """
        goal = self.tally.asked + requests
        await self._until(lambda: self.tally.asked >= goal)

    async def served(self, replica: str, requests: int) -> None:
        """Wait until a replica has answered ``requests`` requests in total.

        Raises:
            TimeoutError: It did not within ``MAX_S``.
        """
        await self._until(lambda: self.tally.by_replica[replica] >= requests)

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(MAX_S):
            while not holds():  # noqa: ASYNC110 - the load has no event to wait for
                await asyncio.sleep(TICK_S)


@asynccontextmanager
async def stateless_traffic(scene: Scene) -> AsyncIterator[Traffic]:
    """Run traffic during the block; all requests have finished when the block is left."""
    traffic, stop = Traffic(), asyncio.Event()

    async def ask(number: int) -> str:
        if number % GENERATE_EVERY:
            return await scene.clients.infer_http()
        return (await scene.clients.generate(f"Statement {number}.", 2)).replica

    loop = asyncio.create_task(closed_loop(ask, workers=WORKERS, stop=stop, tally=traffic.tally))
    try:
        yield traffic
    finally:
        stop.set()
        await loop
