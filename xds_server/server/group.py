"""The streams on which the pickers of a group join it, and learn its list (``group_list``).

Rules:

1. A picker speaks for itself only: its certificate names its id. Of two streams of a picker the
   newer counts. The address that it gives is not verified here: who dials it accepts there only a
   picker whose certificate names the id that it says.
2. A list is stored before it is sent. While it cannot be stored the one before stays.
3. A message that breaks a bound ends its stream with INVALID_ARGUMENT; a picker beyond
   ``MAX_MEMBERS`` gets RESOURCE_EXHAUSTED. One whose id another has, at another address, gets
   ALREADY_EXISTS: each of both would place alone what the list lets this id place.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from math import inf
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog

from tidegate_api.addresses import MAX_MEMBERS
from tidegate_api.fleet.v1 import report_pb2
from xds_server.fleet.store import StoreError
from xds_server.server.group_list import GroupRoster, ListedPickers, PickerStanding

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_COUNT: Final = 2**62
"""Numbers and lives of lists are below this."""
MAX_CHARS: Final = 256
"""Longest id and address."""
AGAIN_S: Final = 5.0
"""After this a list that could not be stored is tried again."""

_log = structlog.get_logger(__name__)


class PickerGroup:
    """The pickers of a group; see the module's rules.

    Args:
        not_named: Returns why a call's peer may not speak as a picker, by its context and the
            picker's id; ``None`` = it may.
        clock: Monotonic seconds.
        life: Number that is greater for each process of the control server.
    """

    def __init__(
        self,
        not_named: Callable[[Any, str], str | None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
        life: int | None = None,
    ) -> None:
        self._not_named = not_named
        self._clock = clock
        self._life = time.time_ns() if life is None else life
        self._roster = GroupRoster(self._life, ListedPickers(), clock())
        self._numbers = itertools.count(1)
        self._streams: dict[str, tuple[int, asyncio.Event]] = {}
        self._settling = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.store: Callable[[str], None] = lambda _: None
        """Stores the list; it blocks, and raises ``StoreError``."""

    def restore(self, text: str | None) -> None:
        """Go on with the list that was stored last; called before the first stream."""
        if text:
            self._roster = GroupRoster(self._life, _kept(text), self._clock())

    def close(self) -> None:
        """Change the list no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    async def serve(self, standings: Any, context: Any) -> None:
        """Take one picker's standings until its stream ends, and send it the list (gRPC)."""
        number, picker = next(self._numbers), ""
        news = asyncio.Event()
        sending: asyncio.Task[None] | None = None
        try:
            async for standing in standings:
                if problem := _problem(picker, standing):
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
                if not picker:
                    if reason := self._not_named(context, standing.picker_id):
                        await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
                    known = self._roster.address(standing.picker_id)
                    if known not in {None, standing.address}:
                        reason = f"{standing.picker_id} is connected from {known} already"
                        await context.abort(grpc.StatusCode.ALREADY_EXISTS, reason)
                    if standing.picker_id not in self._streams and self._roster.full:
                        reason = f"{MAX_MEMBERS} pickers of a group are connected already"
                        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
                    picker = standing.picker_id
                    self._streams[picker] = number, news
                    sending = asyncio.create_task(self._send(context, news))
                    sending.add_done_callback(_ended)
                if self._streams.get(picker, (0,))[0] == number:
                    self._roster.told(picker, _standing(standing))
                    news.set()
                    await self._settle()
        finally:
            if sending is not None:
                sending.cancel()  # not awaited: a write to a peer that is gone may not end
            if self._streams.get(picker, (0,))[0] == number:
                del self._streams[picker]
                self._roster.left(picker, self._clock())
                self._later(0.0)

    async def _send(self, context: Any, news: asyncio.Event) -> None:
        sent = None
        while True:
            await news.wait()
            news.clear()
            version, members, addresses = self._shown()
            if (version, addresses) != sent:
                sent = version, addresses
                await context.write(
                    report_pb2.GroupList(
                        number=version[0], life=version[1], members=members, addresses=addresses
                    )
                )

    def _shown(self) -> tuple[tuple[int, int], tuple[str, ...], tuple[str, ...]]:
        listed = self._roster.list
        return listed.version, listed.members, self._roster.addresses

    async def _settle(self) -> None:
        """Make the lists that are due, and tell all."""
        async with self._settling:
            # One time for both: a member that may be removed between two would be forgotten.
            while (made := self._roster.next(now := self._clock())) is not None:
                try:
                    await asyncio.to_thread(self.store, json.dumps(made._asdict()))
                except StoreError as error:
                    _log.error("group_list_not_stored", reason=str(error))
                    self._later(AGAIN_S)
                    break
                changed = made.version != self._roster.list.version
                self._roster.put(made)
                if changed:
                    _log.info("group_listed", number=made.number, members=list(made.members))
            else:
                self._later(self._roster.due(now))
            for _, news in self._streams.values():
                news.set()  # which sends what differs

    def _later(self, delay_s: float) -> None:
        """Settle after a delay; infinite = not by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if delay_s < inf and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._start)

    def _start(self) -> None:
        task = asyncio.ensure_future(self._settle())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _ended(sending: asyncio.Task[None]) -> None:
    """Take the error of a write: the reader of the stream meets its end too."""
    if not sending.cancelled():
        sending.exception()


def _standing(told: report_pb2.GroupStanding) -> PickerStanding:
    holds = ListedPickers(told.holds.number, told.holds.life, tuple(told.holds.members))
    return PickerStanding(told.address, told.places, told.agrees, holds)


def _problem(picker: str, told: report_pb2.GroupStanding) -> str:
    texts = (told.picker_id, told.address, *told.holds.members)
    if any(not 0 < len(each) <= MAX_CHARS or not each.isprintable() for each in texts):
        return f"picker_id, address and members must have 1 to {MAX_CHARS} characters"
    if picker not in {"", told.picker_id}:
        return "picker_id must be the same in each message"
    if len(told.holds.members) > MAX_MEMBERS:
        return f"more than {MAX_MEMBERS} members"
    if max(told.holds.number, told.holds.life) >= MAX_COUNT:
        return f"number and life of a list must be below {MAX_COUNT}"
    return ""


def _kept(text: str) -> ListedPickers:
    found = json.loads(text)
    lists = {name: tuple(found[name]) for name in ("members", "before")}
    return ListedPickers(found["number"], found["life"], agreed=found["agreed"], **lists)
