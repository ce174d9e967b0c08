"""The single writer of the fleet: all changes, from every source, are made here.

Rules:

1. Changes are made one after the other, each based on the result of the one before.
2. A change is validated as a whole (rules, then resources) before it is stored, stored before it is
   published, and published once. A failure in any of these steps changes nothing. What relieves
   replicas is made even if the store cannot be written (``xds_server.control.journal``).
3. A change without differences makes no revision.
4. A revision that clients reject does not stay in force: their error messages are stored with it,
   and before any other change a new revision falls back to the last good state. Drains and the
   addition or removal of replicas survive this (``xds_server.fleet.fallback``).
5. A change that has begun is completed even if its caller leaves. Those that wait for their turn
   are bounded (``ChangeQueue``).
6. What would take the last usable replica of a variant is refused unless it is forced; the history
   says so (``guards.last_replica``). Members that go are logged: they are gone already.
7. A change that names the revision on which it is based is refused if another one is in force, and
   so is a whole fleet that names none and would undo drains or canaries (``guards.others``).
8. What takes time (loading, checking, comparing, planning) runs in a worker thread, so that clients
   are answered meanwhile. A text is loaded in its change's turn, so that no later change overtakes
   it, but before the state's lock is taken: findings and fallbacks do not wait.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from xds_server.control.journal import Journal
from xds_server.control.operation import (
    MAX_TIMEOUT_S,
    Busy,
    Change,
    ChangeOptions,
    FleetText,
    Loaded,
    log_problems,
    log_taken,
    stepped,
    summary,
)
from xds_server.control.rollout import Rollout, sent_before
from xds_server.fleet.diff import diff, is_relief
from xds_server.fleet.fallback import fallback_fleet, fallback_state
from xds_server.fleet.guards.last_replica import LastReplica, taken
from xds_server.fleet.guards.others import ChangedMeanwhile, UndoesOthers, undone, with_drains
from xds_server.fleet.load import check
from xds_server.fleet.members.members import Members
from xds_server.fleet.revision import Revision, following, text_hash
from xds_server.fleet.store import MAX_REVISIONS, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from xds_server.control.ads import SnapshotPublisher
    from xds_server.control.operation import Step
    from xds_server.control.rollout import Planned, Published
    from xds_server.fleet.findings import PublishedSick
    from xds_server.fleet.members.members import Leaving, Placed, Promoted, Unpicked
    from xds_server.fleet.model.fleet import Fleet
    from xds_server.fleet.revision import FileState, FleetState
    from xds_server.fleet.store import RevisionStore
    from xds_server.fleet.view import CanaryMark

MAX_WAITING = 64
MAX_WAITING_CHARS = 32 * 2**20
"""Most characters of the texts in the queue; one text has at most 4 MiB."""

_T = TypeVar("_T")


class ChangeQueue:
    """Runs changes one at a time, in the order of the calls.

    Rules:

    1. A change that has begun is completed even if its caller no longer waits.
    2. At most ``MAX_WAITING`` changes are in the queue, and at most ``MAX_WAITING_CHARS`` of their
       texts; further ones are refused. A text alone in the queue always has room.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._chars = 0

    async def run(self, change: Callable[[], Coroutine[Any, Any, _T]], chars: int = 0) -> _T:
        """Run a change in its turn, and return its result.

        Args:
            change: The change; what it raises is raised here.
            chars: Length of its text.

        Raises:
            Busy: Too many changes wait.
        """
        if len(self._tasks) >= MAX_WAITING:
            raise Busy(f"{MAX_WAITING} changes already wait for their turn; try again")
        if self._tasks and self._chars + chars > MAX_WAITING_CHARS:
            raise Busy("large fleets already wait for their turn; try again")
        task = asyncio.create_task(self._alone(change))

        def done(_: object) -> None:
            self._tasks.discard(task)
            self._chars -= chars
            if not task.cancelled():
                task.exception()  # asyncio logs an exception that is never read

        self._tasks.add(task)
        self._chars += chars
        task.add_done_callback(done)
        return await asyncio.shield(task)

    async def _alone(self, change: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        async with self._lock:
            return await change()

    async def stop(self) -> None:
        """Complete the changes in the queue."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


FALLBACK_AUTHOR = "tidegate"  # of the revisions that fall back to an earlier state


class Control:
    """Changes the fleet; see the module's rules.

    Args:
        store: Stores the revisions.
        publisher: Publishes them to clients.
        unix_ms: Wall clock, Unix milliseconds.
        monotonic_s: Monotonic clock, seconds.
        on_revision: Called with the number of each revision that comes into force.
        left_alone: Returns the replicas that pickers leave alone, by pool and id, and why.
    """

    def __init__(
        self,
        store: RevisionStore,
        publisher: SnapshotPublisher,
        unix_ms: Callable[[], int],
        monotonic_s: Callable[[], float],
        on_revision: Callable[[int], None] = lambda _: None,
        left_alone: Callable[[], Mapping[tuple[str, str], str]] = dict,
    ) -> None:
        self.file_error: str = ""
        """Why the fleet file on disk is not in force; empty when it is."""
        self.refusal: str = ""
        """Which revision clients rejected last, and why; empty once a later one is in force."""
        self.journal = Journal(store)
        """Stores the revisions, or says why it cannot."""
        self._rollout = Rollout(publisher, store.seed())
        self._unix_ms, self._monotonic_s = unix_ms, monotonic_s
        self._on_revision = on_revision
        self._left_alone = left_alone
        self._queue = ChangeQueue()
        self._turn = asyncio.Lock()
        """Held while the state changes."""
        self._state: FleetState | None = None
        self._members = Members()
        self._promoted: Promoted = {}
        """Members of the first state, and the standbys that are in use in it."""
        self._watchers: set[asyncio.Task[None]] = set()

    @property
    def fleet(self) -> Fleet:
        """The fleet in force as clients get it: with the replicas that were found.

        Raises:
            RuntimeError: There is none yet.
        """
        return required(self._state).published

    @property
    def written(self) -> Fleet:
        """The fleet of the revision in force: without what was found.

        Raises:
            RuntimeError: There is none yet.
        """
        return required(self._state).fleet

    @property
    def members(self) -> Members:
        """The replicas that were found and admitted."""
        return self._members if self._state is None else self._state.members

    @property
    def promoted(self) -> Promoted:
        """The standbys that have come in by themselves."""
        return self._promoted if self._state is None else self._state.promoted

    @property
    def file(self) -> FileState | None:
        """The fleet file as it was applied last; ``None`` = the fleet never came from a file."""
        return None if self._state is None else self._state.file

    @property
    def revision(self) -> int:
        """Number of the revision in force; 0 if there is none yet."""
        return 0 if self._state is None else self._state.revision.number

    @property
    def incarnations(self) -> Mapping[str, int]:
        """The incarnation of each endpoint."""
        known = {} if self._state is None else self._state.all_incarnations
        return {endpoint: number for endpoint, (number, _) in known.items()}

    async def publish_sick(self, sick: PublishedSick) -> None:
        """Publish the fleet in force with these replicas marked as sick; makes no revision."""
        async with self._turn:
            await self._fall_back()
            self._rollout.sick = sick
            self._publish_again()

    async def publish_placed(self, placed: Placed) -> bool:
        """Publish the fleet in force with these models of replicas listed; makes no revision.

        Returns:
            ``False`` if another publication runs, which it does not supersede; nothing has changed.
        """
        return await self._publish_observed(placed=placed)

    async def publish_unpicked(self, unpicked: Unpicked) -> bool:
        """Publish the fleet in force with these bounds of requests without a pick.

        Returns:
            As ``publish_placed``.
        """
        return await self._publish_observed(unpicked=unpicked)

    async def _publish_observed(
        self, placed: Placed | None = None, unpicked: Unpicked | None = None
    ) -> bool:
        """Publish with what was observed, ``None`` = as before, unless a publication runs."""
        async with self._turn:
            await self._fall_back()
            rollout = self._rollout
            if rollout.newest is not None and rollout.newest.outcome.state == "waiting":
                return False
            rollout.placed = rollout.placed if placed is None else placed
            rollout.unpicked = rollout.unpicked if unpicked is None else unpicked
            self._publish_again()
            return True

    def _publish_again(self) -> None:
        if self._state is not None:
            self._publish(self._state)

    def recall_leaving(self, leaving: Leaving) -> None:
        """Publish these models as leaving replicas with the first state."""
        self._rollout.leaving = leaving

    def mark_canaries(self, marks: Mapping[str, CanaryMark]) -> None:
        """Tell pickers of these rollouts, by pool, with the weights that are published next."""
        self._rollout.canaries = dict(marks)

    async def publish_leaving(self, leaving: Leaving) -> None:
        """Publish the fleet in force with these models leaving replicas; makes no revision."""
        self._rollout.leaving = leaving
        await self.publish_sick(self._rollout.sick)

    async def publish_members(self, members: Members) -> None:
        """Publish the fleet in force with these replicas found; makes no revision.

        Raises:
            FleetError: The fleet breaks rules with them; nothing has changed.
        """
        async with self._turn:
            await self._fall_back()
            if self._state is None:
                self._members = members
                return
            before = self._state.published
            members.published(self._state.fleet, before)
            await self._republish(before, replace(self._state, members=members))

    async def publish_promoted(self, promoted: Promoted) -> None:
        """Publish the fleet in force with these standbys in use; makes no revision."""
        async with self._turn:
            await self._fall_back()
            here = required(self._state)
            await self._republish(here.published, replace(here, promoted=promoted))

    async def _republish(self, before: Fleet, state: FleetState) -> None:
        log_taken(taken(before, state.published, self._left_alone()))
        await asyncio.to_thread(check, state.published, "with the replicas that were found")
        planned = await asyncio.to_thread(self._rollout.plan, state, self._rollout.acknowledged())
        self._state = state
        self._publish(state, planned)

    async def start(
        self,
        text: str,
        source: str,
        members: Members | None = None,
        promoted: Promoted | None = None,
        *,
        shared: bool = False,
    ) -> Change:
        """Publish the stored fleet, then the file's fleet if the file was edited since.

        Where several servers share the store, an older file of this one would undo what another
        has applied: a file that differs waits for its next edit.

        Args:
            text: Content of the fleet file.
            source: The file's name, for messages.
            members: The replicas that were found before.
            promoted: The standbys that had come in before.
            shared: Other servers write to the store, too.

        Raises:
            FleetError: The file is not a valid fleet.
            StoreError: The store cannot be used; one that has a fleet need not be writable.
        """
        self._members, self._promoted = members or self._members, promoted or {}
        stored = await self.journal.latest()
        if stored is None:
            return await self.apply_file(text, source)
        self._state = replace(stored, members=self._members, promoted=self._promoted)
        past = await self.journal.unfinished()
        self._publish(self._state, await asyncio.to_thread(self._rollout.first, self._state, past))
        if shared:
            if stored.file is None or stored.file.text_hash != text_hash(text):
                self.file_error = (
                    f"{source} is not the file that was applied last; edit it again, or apply it"
                )
            return Change(self.revision, ())
        try:
            return await self.apply_file(text, source)
        except (StoreError, LastReplica):  # the stored one stays; ``file_error`` shows the reason
            return Change(self.revision, ())

    async def stop(self) -> None:
        """Complete the running changes; closing the store is the caller's task."""
        await self._queue.stop()
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await self.journal.stop()

    async def apply_file(self, text: str, source: str) -> Change:
        """Apply the fleet file unless its content is the one applied last.

        Weights, limits, ramps and drains that operators set at run time are kept where the edit did
        not change them (``xds_server.fleet.change.merge``). ``file_error`` holds the result.

        Raises:
            FleetError: The file is not a valid fleet; the current fleet stays in force.
            LastReplica: It would take the last usable replica of a variant.
            StoreError: It could not be stored; the current fleet stays in force.
            Busy: Too many changes wait.
        """
        digest = text_hash(text)
        try:
            known = None if self._state is None else self._state.file
            if known is not None and known.text_hash == digest:
                result = Change(self.revision, ())
            else:
                options = ChangeOptions("fleet file", f"{source} changed")
                result = await self._make(FleetText(text, source, is_file=True), options)
        except Exception as error:
            self.file_error = str(error)
            raise
        if not result.changes and self.file_error == self.refusal:
            self.refusal = ""  # the file no longer wants what was refused
        self.file_error = ""
        return result

    async def apply_text(self, text: str, source: str, options: ChangeOptions) -> Change:
        """Make the fleet of a YAML or JSON text the fleet in force, as ``apply`` does.

        Raises:
            FleetError: The text, which errors call ``source``, is not a valid fleet.
            UndoesOthers: It would undo drains or canaries, names no revision, and is not forced.
        """
        return await self._make(FleetText(text, source), options)

    async def apply(self, fleet: Fleet, options: ChangeOptions) -> Change:
        """Make ``fleet`` the fleet in force, without merging.

        Raises:
            FleetError: It breaks rules.
            StoreError: It could not be stored.
            Busy: Too many changes wait.
        """
        return await self._make(lambda _: fleet, options)

    async def change(self, edit: Callable[[Fleet], Fleet], options: ChangeOptions) -> Change:
        """Make an edit of the fleet in force the fleet in force.

        Args:
            edit: Returns the new fleet; called in its turn (``xds_server.fleet.change``).
            options: Options of the change.

        Raises:
            UnknownName: The edit names what does not exist.
            BadChange: A value is out of range.
            FleetError: The result breaks a rule, e.g. all weights would be 0.
            LastReplica: It takes the last usable replica of a variant, and is not forced.
            ChangedMeanwhile: It is based on a revision that is not in force, and is not forced.
            StoreError: It could not be stored.
            Busy: Too many changes wait.
        """
        return await self._make(lambda live: edit(required(live)), options)

    async def difference(self, old: int, new: int) -> tuple[str, ...]:
        """Return the differences between two revisions; 0 means the fleet in force.

        Raises:
            UnknownRevision: A revision does not exist (any more).
            StoreError: A revision cannot be read.
        """
        was = await self.journal.fleet(old) if old else self.written
        now = await self.journal.fleet(new) if new else self.written
        return await asyncio.to_thread(diff, was, now)

    async def revisions(self, limit: int) -> tuple[Revision, ...]:
        """Return at most ``limit`` revisions, newest first.

        Raises:
            StoreError: They cannot be read.
        """
        return await self.journal.revisions(limit)

    async def rollback(self, revision: int, options: ChangeOptions) -> Change:
        """Make the fleet of an earlier revision the fleet in force, as a new revision.

        Replicas that drain now drain on, unless it is forced.

        Raises:
            UnknownRevision: The revision does not exist (any more).
            FleetError: The fleet breaks rules that did not exist then.
            StoreError: It could not be read or stored.
            Busy: Too many changes wait.
        """
        fleet, safe = await self.journal.fleet(revision), await self.journal.accepted(revision)
        kept: list[str] = []

        def step(live: Fleet | None) -> Fleet:
            if live is None or options.force:
                return fleet
            drained, kept[:] = with_drains(fleet, live)
            return drained

        change = await self._make(step, replace(options, relief=safe))
        return replace(change, kept=tuple(kept))

    async def _make(self, wanted: FleetText | Step, options: ChangeOptions) -> Change:
        began = self._monotonic_s()
        chars = len(wanted.text) if isinstance(wanted, FleetText) else 0
        change, published = await self._queue.run(lambda: self._take_turn(wanted, options), chars)
        if not options.wait or published is None:
            return change
        outcome = await published.wait(options.timeout_s, self._monotonic_s)
        # A publication that has ended contributes to the caller's wait only from the call on.
        ended = None if outcome.elapsed_s is None else self._monotonic_s() - began
        return replace(change, outcome=outcome, elapsed_s=ended)

    async def _take_turn(
        self, step: FleetText | Step, options: ChangeOptions
    ) -> tuple[Change, Published | None]:
        if isinstance(step, FleetText):
            step = await asyncio.to_thread(step.load)
        file = step.file if isinstance(step, Loaded) else None
        async with self._turn:
            await self._fall_back()
            before = self._state
            forced = await self._based(options)
            fleet, lines = await asyncio.to_thread(stepped, step, before)
            if before is not None and isinstance(step, Loaded) and file is None:
                forced += self._undoing(
                    undone(before.fleet, fleet, self._rollout.canaries), options
                )
            if not lines and options.note:
                lines = (options.note,)
            if not lines:
                if file is not None and not options.dry_run:
                    await self._remember(file)
                return Change(self.revision, ()), self._rollout.newest
            at, number = self._unix_ms(), self.revision + 1
            revision = Revision(number, at, options.author, options.reason, lines)
            state = following(before, fleet, revision, file)
            if before is None:
                state = replace(state, members=self._members, promoted=self._promoted)
            else:
                left_alone, published = self._left_alone(), before.published
                lost = await asyncio.to_thread(
                    lambda: taken(published, state.published, left_alone)
                )
                if lost and not options.force:
                    raise LastReplica(lost)
                forced += tuple(f"forced: this leaves {each}" for each in lost)
                lines += forced
                state = replace(state, revision=replace(state.revision, changes=lines))
            # Build the resources before storing: what cannot be published is never stored.
            planned = await asyncio.to_thread(
                self._rollout.plan, state, self._rollout.acknowledged()
            )
            if options.dry_run:
                return Change(
                    self.revision, lines, preview=self._rollout.preview(planned, state)
                ), None
            live = None if before is None else before.fleet
            await self._keep(state, relief=options.relief or is_relief(live, fleet))
            change, newest = Change(state.revision.number, lines), self._rollout.newest
            if newest is not None and newest.refused:
                # The state on which it is based was rejected meanwhile: fall back from both.
                await self._fall_back()
                return change, newest
            return change, self._publish(state, planned)

    async def _based(self, options: ChangeOptions) -> tuple[str, ...]:
        """Return which newer revisions a forced change overrides, one line.

        Raises:
            ChangedMeanwhile: Another revision is in force than a change names that is not forced.
        """
        if options.based_on in {0, self.revision}:
            return ()
        if options.force:
            return (f"forced: it is based on revision {options.based_on}, not {self.revision}",)
        since = await self.journal.revisions(MAX_REVISIONS)
        raise ChangedMeanwhile(options.based_on, self.revision, since)

    def _undoing(self, lost: list[str], options: ChangeOptions) -> tuple[str, ...]:
        if lost and not (options.based_on or options.force):
            raise UndoesOthers(lost, self.revision)
        return tuple(f"forced: this undoes {each}" for each in lost if options.force)

    async def _keep(self, state: FleetState, *, relief: bool) -> None:
        await self.journal.append(state, relief=relief)
        self._state = state

    async def _remember(self, file: FileState) -> None:
        await self.journal.remember_file(file)
        state = required(self._state)
        self._state = replace(state, file=file)

    def _publish(self, state: FleetState, planned: Planned | None = None) -> Published:
        published = self._rollout.publish(state, planned)
        self._on_revision(state.revision.number)
        watcher = asyncio.create_task(self._follow(published))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return published

    async def _follow(self, published: Published) -> None:
        """Wait for a publication's end, and store its outcome."""
        number = published.state.revision.number
        while True:
            outcome = await published.publication.wait(MAX_TIMEOUT_S)
            if outcome.state != "waiting":
                break
        log_problems(number, outcome)
        if outcome.state == "abandoned":
            async with self._turn:
                await self._fall_back()
            return
        if outcome.state == "done" and published.state.revision.author != FALLBACK_AUTHOR:
            self.refusal = ""
        if outcome.state == "superseded" and number == self.revision:
            return  # by the same revision, e.g. with other replicas; the outcome is that one's
        await self.journal.note(number, summary(sent_before(published.earlier, outcome)))

    async def _fall_back(self) -> None:
        """Publish the last good state again if clients rejected the newest one."""
        refused = self._rollout.newest
        if refused is None or not refused.refused:
            return
        outcome, here, good = refused.outcome, required(self._state), refused.good
        number, text = refused.state.revision.number, summary(outcome)
        membership = all(problem.type != "EDS" for problem in outcome.problems)
        fleet = await asyncio.to_thread(
            fallback_fleet, good.fleet, here.fleet, membership=membership
        )
        why = f"revision {number} was {text}"
        reason = f"back to revision {good.revision.number}: {why}"
        state = fallback_state(good, here, fleet, FALLBACK_AUTHOR, reason, self._unix_ms())
        state = state if membership else replace(state, members=good.members)
        await self._keep(state, relief=True)
        refused.answered = True
        self.refusal = f"{why}; revision {state.revision.number} leads back"
        if here.file != good.file:
            self.file_error = self.refusal
        self._publish(state)
        for passed in range(number, here.revision.number + 1):
            await self.journal.note(passed, text)


def required(value: _T | None) -> _T:
    """Return a value that is there once the control server has a fleet.

    Raises:
        RuntimeError: It has none yet.
    """
    if value is None:
        raise RuntimeError("the control server has no fleet yet")
    return value
