"""Journal: revisions and outcomes on their way to the store, which may be full or read-only.

Rules:

1. A revision is written before it comes into force. While the store cannot be written, only
   *relief* is accepted: drains and their ends, ``shed``, the fallback from a refused revision, and
   rollbacks to a revision that clients accepted. Everything else is refused with the reason.
2. Relief is held in memory, is part of the history there, and is written in order: before the next
   revision, and every ``RETRY_S`` seconds.
3. At most ``MAX_HELD`` revisions are held. Above that the oldest is dropped from the history; the
   newest, which contains its change, never is.
4. Outcomes are observations. One that cannot be written is held as well, the newest ``MAX_HELD``.
5. ``fault`` says why the store cannot be written; a restart then loses what is held.
6. Where a shared store does not answer, relief waits: either it answers again, or the lease ends
   this process, and another server leads, which would not have what is held here.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from xds_server.fleet.revision import ACCEPTED, lasting_outcome
from xds_server.fleet.store import StoreError, StoreSilent, UnknownRevision

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from xds_server.fleet.model.fleet import Fleet
    from xds_server.fleet.revision import FileState, FleetState, Revision
    from xds_server.fleet.store import RevisionStore

RETRY_S: Final = 2.0
"""Seconds between attempts to write what is held."""

AGAIN_S: Final = 0.2
"""Seconds between attempts to write relief to a store that does not answer."""

MAX_HELD: Final = 256

_ONLY_RELIEF: Final = (
    "until it can be written, only drains and their ends, shed, and rollbacks to a revision that "
    "clients accepted are made"
)
_log = structlog.get_logger(__name__)


class Journal:
    """Writes to a store, or holds in memory; see the module's rules.

    Args:
        store: The store; its calls block and are made in worker threads.
        sleep: Waits a number of seconds.
    """

    def __init__(
        self, store: RevisionStore, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self.fault: str = ""
        """Why the store cannot be written; empty when it can."""
        self._store = store
        self._sleep = sleep
        self._turn = asyncio.Lock()
        self._held: list[FleetState] = []
        self._outcomes: dict[int, str] = {}
        """Outcomes of stored revisions that could not be written."""
        self._retrying: asyncio.Task[None] | None = None

    @property
    def held(self) -> tuple[int, ...]:
        """Numbers of the revisions that a restart would lose, oldest first."""
        return tuple(state.revision.number for state in self._held)

    async def latest(self) -> FleetState | None:
        """Return the newest stored state; ``None`` if nothing was ever stored.

        Raises:
            StoreError: It cannot be read.
        """
        state = await asyncio.to_thread(self._store.latest)
        if self._store.read_only:
            async with self._turn:
                try:
                    await asyncio.to_thread(self._store.check_writable)
                except StoreError as error:
                    self._failed(error)
        return state

    async def unfinished(self) -> tuple[Fleet, ...]:
        """Return the fleets before the newest that clients may still have, oldest first.

        None if they cannot be read: they only make the way to the newest one smoother.
        """
        try:
            return await asyncio.to_thread(self._store.unfinished)
        except (StoreError, UnknownRevision) as error:
            _log.warning("revisions_not_recalled", error=str(error))
            return ()

    async def append(self, state: FleetState, *, relief: bool) -> None:
        """Write a new revision or, if it is relief and cannot be written, hold it.

        Raises:
            StoreError: It was neither written nor held; nothing has changed.
        """
        stored = False
        async with self._turn:
            try:
                await self._append(state, patient=relief)
            except StoreError as error:
                self._failed(error)
                if not relief:
                    raise StoreError(f"{error}; {_ONLY_RELIEF}") from None
                self._hold(state)
            else:
                stored = True
                self._written()
        revision = state.revision
        known = {
            "revision": revision.number,
            "author": revision.author,
            "reason": revision.reason,
            "changes": len(revision.changes),
        }
        if stored:
            _log.info("revision_stored", **known)
        else:
            _log.warning("revision_held", **known)

    async def remember_file(self, file: FileState) -> None:
        """Write that the fleet file was applied without changing the fleet.

        Raises:
            StoreError: It was not written.
        """
        async with self._turn:
            try:
                await self._write_held()
                await asyncio.to_thread(self._store.remember_file, file)
            except StoreError as error:
                self._failed(error)
                raise
            self._written()

    async def note(self, number: int, outcome: str) -> None:
        """Write or hold the outcome of a publication (``lasting_outcome``).

        It has no effect if the revision is no longer kept.
        """
        async with self._turn:
            for place, state in enumerate(self._held):
                if state.revision.number == number:
                    lasting = lasting_outcome(state.revision.outcome, outcome)
                    revision = replace(state.revision, outcome=lasting)
                    self._held[place] = replace(state, revision=revision)
                    return
            try:
                await asyncio.to_thread(self._store.note, number, outcome)
            except StoreError as error:
                self._outcomes[number] = lasting_outcome(self._outcomes.get(number, ""), outcome)
                while len(self._outcomes) > MAX_HELD:
                    del self._outcomes[next(iter(self._outcomes))]
                self._failed(error)

    async def revisions(self, limit: int) -> tuple[Revision, ...]:
        """Return at most ``limit`` revisions, newest first, those held in memory included.

        Raises:
            StoreError: They cannot be read.
        """
        async with self._turn:
            held = [state.revision for state in reversed(self._held)]
            stored = await asyncio.to_thread(self._store.revisions, limit)
            known = [replace(r, outcome=self._outcomes.get(r.number, r.outcome)) for r in stored]
            return tuple([*held, *known][:limit])

    async def fleet(self, number: int) -> Fleet:
        """Return the fleet of a revision.

        Raises:
            UnknownRevision: The revision does not exist (any more).
            StoreError: It cannot be read.
        """
        for state in self._held:
            if state.revision.number == number:
                return state.fleet
        return await asyncio.to_thread(self._store.fleet, number)

    async def accepted(self, number: int) -> bool:
        """Return whether clients accepted a revision, as far as its outcome is known.

        Raises:
            StoreError: It cannot be read.
        """
        found = await asyncio.to_thread(self._store.outcome, number)
        held = {state.revision.number: state.revision.outcome for state in self._held}
        return held.get(number, self._outcomes.get(number, found)).startswith(ACCEPTED)

    async def stop(self) -> None:
        """Try once more to write what is held; log the revisions that are lost."""
        if self._retrying is not None:
            self._retrying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._retrying
            self._retrying = None
        if self._held or self._outcomes:
            await self._try()
        if self._held:
            _log.error("revisions_lost", revisions=self.held, error=self.fault)

    # --- writing what is held -------------------------------------------------------------------

    async def _append(self, state: FleetState, *, patient: bool) -> None:
        while True:
            try:
                await self._write_held()
                await asyncio.to_thread(self._store.append, state)
            except StoreSilent as error:
                if not patient:
                    raise
                self._failed(error)
                await self._sleep(AGAIN_S)
            else:
                return

    def _hold(self, state: FleetState) -> None:
        self._held.append(state)
        if len(self._held) > MAX_HELD:
            dropped = self._held.pop(0)
            _log.error("held_revision_dropped", revision=dropped.revision.number)

    async def _write_held(self) -> None:
        while self._held:
            await asyncio.to_thread(self._store.append, self._held[0])
            del self._held[0]
        while self._outcomes:
            number = next(iter(self._outcomes))
            await asyncio.to_thread(self._store.note, number, self._outcomes[number])
            del self._outcomes[number]

    def _failed(self, error: StoreError) -> None:
        if not self.fault:
            _log.error("store_not_writable", error=str(error))
        self.fault = str(error)
        if self._retrying is None or self._retrying.done():
            self._retrying = asyncio.create_task(self._retry())

    def _written(self) -> None:
        if self.fault:
            _log.info("store_writable_again")
        self.fault = ""

    async def _retry(self) -> None:
        while self.fault:
            await self._sleep(RETRY_S)
            await self._try()

    async def _try(self) -> None:
        async with self._turn:
            try:
                await self._write_held()
                await asyncio.to_thread(self._store.check_writable)
            except StoreError as error:
                self.fault = str(error)
            else:
                self._written()
