"""Runs operations on models, keeps their history, and takes them up after a restart.

Rules:

1. One operation at a time changes a model, in whatever pool; later ones wait for it, in the order
   in which they came. At most ``MAX_OPEN`` are open.
2. An operation is stored after each event, before what follows from it is done. One that cannot be
   stored at its beginning does not begin; later a store that cannot be written costs the memory of
   a restart alone.
3. The newest ``MAX_KEPT`` operations are kept, each in a place of its own in the store. An open one
   is never dropped.
4. A model that an operation unloads is out of use there (``leaving``) until the operation has
   ended, over restarts too.
5. After a restart operations that were open go on or are undone (rule 7 of ``machine``), before
   anything else changes their models. Warm-up requests are stored in a place of their own until the
   operation has ended. If they are too large for it, a restart undoes the operation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, get_args
from weakref import WeakValueDictionary

import structlog

from xds_server.applications.loading.acting import ModelActions, check_model, chosen
from xds_server.applications.loading.machine import Action, LoadMachine
from xds_server.applications.loading.operation import (
    ENDED,
    Kind,
    ModelTarget,
    Operation,
    OperationError,
    dump,
    dump_warmup,
    load,
    load_warmup,
)
from xds_server.applications.loading.overview import operations_now
from xds_server.fleet.change import BadChange, UnknownName
from xds_server.fleet.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.applications.loading.acting import Event
    from xds_server.fleet.store import RevisionStore
    from xds_server.observability import OperationsNow


MAX_KEPT: Final = 50
MAX_OPEN: Final = 16
MAX_PARALLEL: Final = 64
DEFAULT_PARALLEL: Final = 2
MAX_WARMUPS: Final = 16
MAX_WARMUP_BYTES: Final = 2**20
"""Most bytes of one warm-up request."""
KEY: Final = "operation-{}"
"""Key of a place in the store."""
WARMUP_KEY: Final = "operation-{}-warmup"
"""Key of the warm-up requests of the operation in a place."""
_MAX_NAME: Final = 256
_MAX_REASON: Final = 1000

_log = structlog.get_logger(__name__)


class TooManyOperations(RuntimeError):  # noqa: N818 - reads as the sentence it is
    """Too many operations are open, or the server is stopping."""


class WantedOperation(NamedTuple):
    """What an operator wants."""

    kind: Kind
    pool: str
    model: str
    version: str = ""
    """The version that must be READY after a load; empty = any."""
    endpoints: tuple[str, ...] = ()
    """Ids of replicas; empty = all of the pool that do not drain."""
    parallel: int = DEFAULT_PARALLEL
    warmup: tuple[bytes, ...] = ()
    """Bodies of requests to send to each replica after a load."""
    author: str = ""
    reason: str = ""
    force: bool = False
    dry_run: bool = False


class LoadKeeper:
    """Runs operations; see the module's rules.

    Args:
        actions: Carries out their actions.
        store: Keeps operations.
        unix_ms: Wall clock, Unix milliseconds.
    """

    def __init__(
        self, actions: ModelActions, store: RevisionStore, unix_ms: Callable[[], int]
    ) -> None:
        self.actions = actions
        self._store = store
        self._unix_ms = unix_ms
        self._places: dict[int, Operation] = {}
        self._runs: dict[int, _Run] = {}
        """By the operation's number."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By model; whoever waits or has the turn holds a reference."""
        self._next = 1
        self._stopped = False
        self._recalled = False
        self._ended: Counter[tuple[str, str]] = Counter(
            {(kind, end): 0 for kind in get_args(Kind) for end in sorted(ENDED)}
        )
        """Operations of this process by kind and outcome, without dry runs."""

    async def start(self) -> None:
        """Take up what was open, read from the store unless that was done.

        Raises:
            StoreError: The store cannot be read.
        """
        if not self._recalled:
            await self.recall()
        for place, each in sorted(self._places.items(), key=lambda item: item[1].number):
            if not each.ended:
                await self._take_up(place, each)

    async def recall(self) -> None:
        """Read what is stored; models that were being unloaded stay out of use.

        To be called before the fleet is published, so that no picker sees them in use.

        Raises:
            StoreError: The store cannot be read.
        """
        self._recalled = True
        for place in range(MAX_KEPT):
            text = await asyncio.to_thread(self._store.value, KEY.format(place))
            try:
                if text is not None:
                    self._places[place] = load(text)
            except OperationError as error:
                _log.warning("operation_not_recalled", place=place, error=str(error))
        self._next = 1 + max((each.number for each in self._places.values()), default=0)
        for each in self._places.values():
            if not each.ended:
                self.actions.recall(each)

    async def stop(self) -> None:
        """Stop; what is open is taken up by the next process."""
        self._stopped = True
        tasks = [each.task for each in self._runs.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def operations(self, pool: str, number: int, limit: int) -> list[Operation]:
        """Return operations, the newest first; an empty pool and number 0 = all."""
        found = [
            each
            for each in self._places.values()
            if (not pool or each.pool == pool) and (not number or each.number == number)
        ]
        return sorted(found, key=lambda each: -each.number)[:limit]

    def now(self) -> OperationsNow:
        """Return what the operations come to."""
        found = operations_now(self._places.values(), self._unix_ms(), self.actions.has)
        return found._replace(ended=self._ended)

    async def begin(self, wanted: WantedOperation) -> Operation:
        """Begin an operation, or let it wait for its turn.

        Raises:
            UnknownName: There is no such pool or replica.
            BadChange: A value is out of its bounds.
            TooManyOperations: Too many are open, or the server is stopping.
            StoreError: It could not be stored.
        """
        if self._stopped:
            raise TooManyOperations("the control server is stopping")
        _check(wanted)
        warmup = dump_warmup(self._next, wanted.warmup) if wanted.warmup else ""
        targets = chosen(self.actions.pool(wanted.pool), wanted.endpoints)
        if wanted.kind == "load":
            ids = {each.id for each in targets}
            why = self.actions.pinned(ids, wanted.model, wanted.version)
            if why:
                raise BadChange(why)
        place = self._free_place()
        made = Operation(
            number=self._next,
            kind=wanted.kind,
            pool=wanted.pool,
            model=wanted.model,
            version=wanted.version,
            author=wanted.author[:_MAX_NAME],
            reason=wanted.reason[:_MAX_REASON],
            parallel=wanted.parallel,
            force=wanted.force,
            dry_run=wanted.dry_run,
            began_unix_ms=self._unix_ms(),
            targets=[ModelTarget(each.id) for each in targets],
            warmups=len(wanted.warmup),
            resumable=warmup is not None,
        )
        self._next += 1
        before = self._places.get(place)
        self._places[place] = made
        try:
            if warmup:
                await self._put(WARMUP_KEY, place, warmup)
            await self._put(KEY, place, dump(made))
        except BaseException:
            if before is None:
                del self._places[place]
            else:
                self._places[place] = before
            raise
        if not self._stopped:
            self._run(_Run(place, LoadMachine(made, self._unix_ms), wanted.warmup))
        return made

    async def abort(self, number: int, who: str) -> Operation:
        """Give an operation up; it is undone, unless it has ended.

        Raises:
            UnknownName: There is none of this number.
        """
        found = self.operations("", number, 1) if number else []
        if not found:
            known = [str(each.number) for each in self.operations("", 0, MAX_KEPT)]
            raise UnknownName("operation", str(number), known)
        run = self._runs.get(number)
        if run is not None and found[0].phase == "waiting":
            # It has no turn yet: there is nothing to undo or to wait for.
            run.machine.abort(who)
            run.ended.set()
            await self._keep(run)
        elif run is not None:
            run.events.put_nowait(lambda machine: machine.abort(who))
        return found[0]

    async def ended(self, number: int, timeout_s: float) -> bool:
        """Wait until an operation has ended, and return whether it has."""
        run = self._runs.get(number)
        if run is None:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await run.ended.wait()
        except TimeoutError:
            return False
        return True

    async def _take_up(self, place: int, operation: Operation) -> None:
        warmup: tuple[bytes, ...] | None = ()
        if operation.warmups:
            text = await asyncio.to_thread(self._store.value, WARMUP_KEY.format(place))
            warmup = load_warmup(text, operation.number)
        whole = operation.resumable and warmup is not None
        machine = LoadMachine(operation, self._unix_ms)
        self._run(_Run(place, machine, warmup or (), whole))

    def _run(self, run: _Run) -> None:
        number = run.machine.operation.number
        self._runs[number] = run
        run.task = asyncio.create_task(self._in_turn(run))

        def over(_: asyncio.Task[None]) -> None:
            del self._runs[number]
            run.ended.set()

        run.task.add_done_callback(over)

    async def _in_turn(self, run: _Run) -> None:
        operation = run.machine.operation
        turn = self._turns.get(operation.model) or asyncio.Lock()
        self._turns[operation.model] = turn
        async with turn:
            if not operation.ended:  # it was not aborted while it waited
                await self._drive(run)
            await self.actions.release(operation)
        if not operation.dry_run:
            self._ended[operation.kind, operation.phase] += 1
        if operation.warmups and operation.resumable:
            await self._forget_warmup(run)

    async def _drive(self, run: _Run) -> None:
        machine, running = run.machine, set[asyncio.Task[None]]()
        actions = machine.begin() if run.whole is None else machine.restarted(whole=run.whole)
        _log.info("model_operation_began", **_told(machine.operation))
        try:
            while True:
                await self._keep(run)
                for action in actions:
                    task = asyncio.create_task(self._act(run, action))
                    running.add(task)
                    task.add_done_callback(running.discard)
                if machine.operation.ended:
                    break
                actions = (await run.events.get())(machine)
        finally:
            for task in list(running):
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        stuck = [each.id for each in machine.operation.targets if each.place == "stuck"]
        if stuck:
            _log.error("model_operation_failed", stuck=stuck, **_told(machine.operation))
        else:
            _log.info("model_operation_ended", **_told(machine.operation))

    async def _act(self, run: _Run, action: Action) -> None:
        run.events.put_nowait(await self.actions.act(action, run.machine.operation, run.warmup))

    async def _keep(self, run: _Run) -> None:
        operation = run.machine.operation
        try:
            await self._put(KEY, run.place, dump(operation))
        except StoreError as error:
            _log.warning("operation_not_stored", operation=operation.number, error=str(error))

    async def _forget_warmup(self, run: _Run) -> None:
        # What is left is of no operation that is open, and is replaced by the next one's.
        with contextlib.suppress(StoreError):
            await self._put(WARMUP_KEY, run.place, "")

    async def _put(self, key: str, place: int, text: str) -> None:
        await asyncio.to_thread(self._store.put_value, key.format(place), text)

    def _free_place(self) -> int:
        # One that was aborted while it waited is open until its turn comes.
        ended = {
            place: each.number
            for place, each in self._places.items()
            if each.ended and each.number not in self._runs
        }
        if len(self._places) - len(ended) >= MAX_OPEN:
            raise TooManyOperations(f"{MAX_OPEN} operations on models are open; wait for one")
        free = [place for place in range(MAX_KEPT) if place not in self._places]
        return free[0] if free else min(ended, key=lambda place: ended[place])


class _Run:
    """An operation that is open.

    Args:
        place: Its place in the store.
        machine: Drives it.
        warmup: Its warm-up requests.
        whole: For one of an earlier process: all that it needs is known. ``None`` = it is new.
    """

    def __init__(
        self,
        place: int,
        machine: LoadMachine,
        warmup: tuple[bytes, ...] = (),
        whole: bool | None = None,
    ) -> None:
        self.place = place
        self.machine = machine
        self.warmup = warmup
        self.whole = whole
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


def _told(operation: Operation) -> dict[str, str | int]:
    return {
        "operation": operation.number,
        "kind": operation.kind,
        "pool": operation.pool,
        "model": operation.model,
        "phase": operation.phase,
        "why": operation.why,
        "author": operation.author,
        "resumed": operation.resumed,
    }


def _check(wanted: WantedOperation) -> None:
    """Hold the bounds of what is wanted.

    Raises:
        BadChange: A value is out of its bounds.
    """
    check_model(wanted.model)
    if wanted.version and not (wanted.version.isascii() and wanted.version.isdecimal()):
        raise BadChange(f"'{wanted.version:.40}' is no version of a model; versions are numbers")
    if not 1 <= wanted.parallel <= MAX_PARALLEL:
        raise BadChange(f"parallel must be between 1 and {MAX_PARALLEL}")
    if len(wanted.warmup) > MAX_WARMUPS or any(
        len(each) > MAX_WARMUP_BYTES for each in wanted.warmup
    ):
        raise BadChange(
            f"at most {MAX_WARMUPS} warm-up requests, each of at most {MAX_WARMUP_BYTES >> 20} MiB"
        )
