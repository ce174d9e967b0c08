"""A publication as who published it sees it: how it stands, and a wait for its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.protocol.publication import PublicationOutcome, PublicationRun


class Publication:
    """A publication under way; returned by ``AdsServer.publish``."""

    def __init__(
        self, run: PublicationRun, outcome: Callable[[PublicationRun], PublicationOutcome]
    ) -> None:
        self._run = run
        self._outcome = outcome
        self._ended = asyncio.Event()

    @property
    def outcome(self) -> PublicationOutcome:
        """How it stands now, or how it ended."""
        return self._outcome(self._run)

    @property
    def ended(self) -> bool:
        """It is no longer under way; cheaper to ask than its outcome."""
        return self._run.outcome is not None

    async def wait(self, timeout_s: float | None = None) -> PublicationOutcome:
        """Wait for the end; after ``timeout_s`` seconds return how it stands ("waiting")."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            pass
        return self.outcome

    def end(self) -> None:
        """Wake who waits; called once, when its run has an outcome."""
        self._ended.set()
