"""The only writer of the fleet: every change, whoever asks for it, passes here.

Laws:

1. Changes are made one after the other, each on what the one before left.
2. A change is judged as a whole - rules, then resources - before anything is stored, stored
   before it is published, and published once. What fails on the way changes nothing.
3. What changes nothing makes no revision.
4. Old resources are withdrawn only once a publication has run to its end: until then the next
   one is planned against everything that clients may still use.
5. A change that has its turn is finished even if nobody waits for it any more.
6. At most ``MAX_WAITING`` changes wait for their turn; further ones are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import structlog

from xds_server.fleet import change as changes_of
from xds_server.fleet.diff import diff
from xds_server.fleet.load import check, load_text
from xds_server.fleet.revision import (
    MAX_AUTHOR_CHARS,
    MAX_REASON_CHARS,
    FileState,
    Revision,
    State,
    next_incarnations,
    text_hash,
)
from xds_server.operation import MAX_TIMEOUT_S, Busy, Change, Options
from xds_server.resources.stages import plan, widened
from xds_server.resources.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xds_server.fleet.model import Fleet
    from xds_server.fleet.store import Store
    from xds_server.protocol.transaction import Stage
    from xds_server.publisher import Publication, Publisher

MAX_WAITING = 64

_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The stages from one view to another."""

    old: View | None
    new: View
    stages: tuple[Stage, ...]


@dataclass(slots=True)
class _Published:
    number: int
    before: View | None
    """What clients could use when it began."""
    view: View
    publication: Publication


class Control:
    """Changes the fleet.

    Args:
        store: Where revisions are kept.
        publisher: Who brings them to clients.
        unix_ms: Wall clock, Unix milliseconds.
        monotonic_s: Monotonic clock, seconds.
        on_revision: Is told the number of each revision that comes into force.
    """

    def __init__(
        self,
        store: Store,
        publisher: Publisher,
        unix_ms: Callable[[], int],
        monotonic_s: Callable[[], float],
        on_revision: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.file_error: str = ""
        """Why the fleet file on disk is not in force; empty when it is."""
        self._store = store
        self._publisher = publisher
        self._unix_ms = unix_ms
        self._monotonic_s = monotonic_s
        self._on_revision = on_revision
        self._turn = asyncio.Lock()
        self._state: State | None = None
        self._reachable: View | None = None
        self._published: _Published | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[tuple[Change, _Published | None]]] = set()

    @property
    def fleet(self) -> Fleet:
        """The fleet in force.

        Raises:
            RuntimeError: There is none yet.
        """
        return _there(self._state).fleet

    @property
    def revision(self) -> int:
        """Number of the revision in force; 0 if there is none yet."""
        return 0 if self._state is None else self._state.revision.number

    async def start(self, text: str, source: str) -> Change:
        """Bring the stored fleet into force, and the file's if it was edited since.

        Args:
            text: Content of the fleet file.
            source: The file's name, for messages.

        Raises:
            FleetError: The file is no valid fleet.
            StoreError: The store cannot be used.
        """
        self._state = await asyncio.to_thread(self._store.latest)
        if self._state is not None:
            self._publish(self._state, self._plan(self._state))
        return await self.apply_file(text, source)

    async def stop(self) -> None:
        """Finish the changes under way; the store is its owner's to close."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None

    async def apply_file(self, text: str, source: str) -> Change:
        """Take over the fleet file, if it is not the one taken over last.

        Weights and drains that operators set at run time survive where the edit did not touch
        them (``xds_server.fleet.change.merge``). ``file_error`` tells how it went.

        Raises:
            FleetError: It is no valid fleet; the running one stays in force.
            StoreError: It could not be stored; the same.
            Busy: Too many changes wait.
        """
        digest = text_hash(text)
        try:
            known = None if self._state is None else self._state.file
            if known is not None and known.text_hash == digest:
                result = Change(self.revision, ())
            else:
                file = FileState(digest, load_text(text, source))
                options = Options("fleet file", f"{source} changed")
                result = await self._make(lambda live: self._merged(file, live), options, file)
        except Exception as error:
            self.file_error = str(error)
            raise
        self.file_error = ""
        return result

    async def apply(self, fleet: Fleet, options: Options) -> Change:
        """Make ``fleet`` the fleet in force, exactly.

        Raises:
            FleetError: It breaks rules.
            StoreError: It could not be stored.
            Busy: Too many changes wait.
        """
        return await self._make(lambda _: fleet, options)

    async def set_weights(self, pool: str, weights: Mapping[str, int], options: Options) -> Change:
        """Set weights of a pool's variants; those not named keep theirs.

        Raises:
            UnknownName: No such pool or variant.
            BadChange: A weight is out of range.
            FleetError: All weights would be 0, or the like.
            StoreError: It could not be stored.
            Busy: Too many changes wait.
        """
        return await self._make(
            lambda live: changes_of.set_weights(_there(live), pool, weights), options
        )

    async def set_draining(self, endpoint: str, draining: bool, options: Options) -> Change:
        """Drain a replica (an id, or ``pool/id`` to mean one pool), or take it back.

        Raises:
            UnknownName: No such endpoint.
            StoreError: It could not be stored.
            Busy: Too many changes wait.
        """
        return await self._make(
            lambda live: changes_of.set_draining(_there(live), endpoint, draining), options
        )

    async def rollback(self, revision: int, options: Options) -> Change:
        """Make the fleet of an earlier revision the fleet in force, as a new revision.

        Raises:
            UnknownRevision: There is none of that number, or no longer.
            FleetError: It breaks rules that it did not break then.
            StoreError: It could not be read or stored.
            Busy: Too many changes wait.
        """
        fleet = await asyncio.to_thread(self._store.fleet, revision)
        return await self._make(lambda _: fleet, options)

    async def revisions(self, limit: int) -> tuple[Revision, ...]:
        """Return at most ``limit`` revisions, newest first.

        Raises:
            StoreError: They cannot be read.
        """
        return await asyncio.to_thread(self._store.revisions, limit)

    async def _make(
        self,
        step: Callable[[Fleet | None], Fleet],
        options: Options,
        file: FileState | None = None,
    ) -> Change:
        began = self._monotonic_s()
        if len(self._tasks) >= MAX_WAITING:
            raise Busy(f"{MAX_WAITING} changes already wait for their turn; try again")
        task = asyncio.create_task(self._take_turn(step, options, file))
        task.add_done_callback(_retrieve)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        change, published = await asyncio.shield(task)
        if not options.wait or published is None:
            return change
        return await self._waited(change, published, began, options.timeout_s)

    async def _take_turn(
        self,
        step: Callable[[Fleet | None], Fleet],
        options: Options,
        file: FileState | None,
    ) -> tuple[Change, _Published | None]:
        async with self._turn:
            live = None if self._state is None else self._state.fleet
            fleet = step(live)
            check(fleet)
            lines = diff(live, fleet)
            if not lines:
                if file is not None and not options.dry_run:
                    await self._remember(file)
                return Change(self.revision, ()), self._published
            state = self._next_state(fleet, lines, options, file)
            # Built once before anything is kept: what cannot be published is never stored.
            planned = self._plan(state)
            if options.dry_run:
                return Change(self.revision, lines), None
            await asyncio.to_thread(self._store.append, state)
            self._state = state
            _log.info(
                "revision_stored",
                revision=state.revision.number,
                author=state.revision.author,
                reason=state.revision.reason,
                changes=len(lines),
            )
            return Change(state.revision.number, lines), self._publish(state, planned)

    async def _waited(
        self, change: Change, published: _Published, began: float, timeout_s: float
    ) -> Change:
        called = self._monotonic_s()
        while True:
            left = max(0.0, called + timeout_s - self._monotonic_s())
            outcome = await published.publication.wait(left)
            newer = self._published
            if outcome.state != "superseded" or newer is None or newer is published:
                break
            # A newer revision contains this change: its acknowledgement is this one's too.
            published = newer
        # A publication that ended before the call took none of the caller's time.
        ended = None if outcome.elapsed_s is None else self._monotonic_s() - began
        return Change(change.revision, change.changes, outcome, ended)

    def _merged(self, file: FileState, live: Fleet | None) -> Fleet:
        if live is None or self._state is None:
            return file.fleet
        last = None if self._state.file is None else self._state.file.fleet
        return changes_of.merge(last, file.fleet, live)

    def _next_state(
        self, fleet: Fleet, lines: tuple[str, ...], options: Options, file: FileState | None
    ) -> State:
        old, now = self._state, self._unix_ms()
        number = self.revision + 1
        return State(
            Revision(
                number,
                now,
                options.author[:MAX_AUTHOR_CHARS],
                options.reason[:MAX_REASON_CHARS],
                lines,
            ),
            fleet,
            next_incarnations(
                None if old is None else old.fleet,
                {} if old is None else old.incarnations,
                fleet,
                number,
                now,
            ),
            file if file is not None or old is None else old.file,
        )

    async def _remember(self, file: FileState) -> None:
        await asyncio.to_thread(self._store.remember_file, file)
        state = _there(self._state)
        self._state = State(state.revision, state.fleet, state.incarnations, file)

    def _plan(self, state: State) -> _Plan:
        new = View(state.fleet, state.incarnations)
        return _Plan(self._reachable, new, plan(self._reachable, new))

    def _publish(self, state: State, planned: _Plan) -> _Published:
        old, new = self._reachable, planned.new
        # An earlier publication may have ended while the revision was being stored.
        stages = planned.stages if planned.old is old else plan(old, new)
        publication = self._publisher.publish(lambda: stages)
        self._reachable = _both(old, new)
        self._published = _Published(state.revision.number, old, new, publication)
        self._on_revision(state.revision.number)
        if self._watcher is not None:
            self._watcher.cancel()
        self._watcher = asyncio.create_task(self._narrow(self._published))
        return self._published

    async def _narrow(self, published: _Published) -> None:
        """Settle what clients may still use, once the publication has run to its end."""
        while True:
            outcome = await published.publication.wait(MAX_TIMEOUT_S)
            if outcome.state != "waiting":
                break
        if self._published is published:
            if outcome.state == "done":
                self._reachable = published.view
            elif outcome.state == "abandoned":
                # Clients went back, and what one of them refused must not be planned with again.
                self._reachable = published.before
        for problem in outcome.problems:
            _log.warning(
                "client_behind",
                revision=published.number,
                client=problem.client,
                state=problem.state,
                type=problem.type,
                message=problem.message,
            )


def _there(value: _T | None) -> _T:
    if value is None:
        raise RuntimeError("the control server has no fleet yet")
    return value


def _retrieve(task: asyncio.Task[tuple[Change, _Published | None]]) -> None:
    """Look at a task's error, which nobody else may be left to see."""
    if not task.cancelled():
        task.exception()


def _both(old: View | None, new: View) -> View:
    if old is None:
        return new
    return View(widened(old.fleet, new.fleet), {**old.incarnations, **new.incarnations})
