"""Handle of a publication for its caller: current outcome, and waiting for the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.protocol.publication import PublicationOutcome, PublicationRun


class Publication:
    """Handle of a publication; returned by ``AdsServer.publish``."""

    def __init__(
        self, run: PublicationRun, outcome: Callable[[PublicationRun], PublicationOutcome]
    ) -> None:
        self._run = run
        self._outcome = outcome
        self._ended = asyncio.Event()

    @property
    def outcome(self) -> PublicationOutcome:
        """Outcome of the publication, current or final."""
        return self._outcome(self._run)

    @property
    def ended(self) -> bool:
        """The publication has ended; cheaper than ``outcome``."""
        return self._run.outcome is not None

    async def wait(self, timeout_s: float | None = None) -> PublicationOutcome:
        """Wait for the end; after ``timeout_s`` seconds return the current outcome ("waiting")."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            pass
        return self.outcome

    def end(self) -> None:
        """Wake the waiting callers; called once, when the run has its outcome."""
        self._ended.set()
