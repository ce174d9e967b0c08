"""Pickers join their group at the control server, and learn its list and addresses."""

from __future__ import annotations

import asyncio
import itertools
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest

from ext_proc.workers.group.joining import GroupJoin
from ext_proc.workers.group.members import GroupPlace
from ext_proc.workers.news import Listed
from tidegate_api.fleet.v1 import report_pb2, report_pb2_grpc
from xds_server.fleet.store import StoreError
from xds_server.server import group_list
from xds_server.server.group import PickerGroup
from xds_server.server.reports import PickerReports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Picker:
    """A picker that agrees with every list, and joins."""

    def __init__(self, channel: grpc.aio.Channel, name: str) -> None:
        self.name = name
        self.holds, self.addresses = Listed(), ()
        self.changed = asyncio.Event()
        self.took = asyncio.Event()
        self.join = GroupJoin(channel, name, self.standing, self.changed, self.take, lambda: 0.0)
        self.running = asyncio.create_task(self.join.run())

    def standing(self, places: bool) -> GroupPlace:
        """Return how it stands."""
        return GroupPlace(f"at-{self.name}:1", places, bool(self.holds.number), self.holds)

    def take(self, listed: Listed, addresses) -> None:
        """Take a list, and say that it agrees."""
        self.holds, self.addresses = listed, tuple(addresses)
        self.changed.set()
        self.took.set()

    async def until(self, true) -> None:
        """Wait until what it has taken is as it should be."""
        async with asyncio.timeout(30):
            while not true(self):
                self.took.clear()
                await self.took.wait()


class Serving:
    """A control server's reports, its store, and pickers that join."""

    def __init__(self, reports: PickerReports, channel: grpc.aio.Channel) -> None:
        self.reports, self.channel = reports, channel
        self.stored: list[dict] = []
        self.pickers: list[Picker] = []
        self._loop, self._written = asyncio.get_running_loop(), asyncio.Event()
        reports.group.store = self._store

    def _store(self, text: str) -> None:
        """Store, in a thread."""
        self.stored.append(json.loads(text))
        self._loop.call_soon_threadsafe(self._written.set)

    async def until_agreed(self, *members: str) -> str:
        """Wait until a list is stored as one on which its members agree; return it."""
        async with asyncio.timeout(30):
            while not any(
                each["agreed"] and each["members"] == list(members) for each in self.stored
            ):
                self._written.clear()
                await self._written.wait()
        return json.dumps(self.stored[-1])

    def picker(self, name: str) -> Picker:
        """Let a picker join that places sequences."""
        made = Picker(self.channel, name)
        made.join.ready()
        self.pickers.append(made)
        return made


@asynccontextmanager
async def serving(not_named=lambda *_: None) -> AsyncIterator[Serving]:
    """Serve reports."""
    reports = PickerReports(lambda: None, not_named=not_named)
    server = grpc.aio.server()
    report_pb2_grpc.add_PickerReportsServicer_to_server(reports, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            made = Serving(reports, channel)
            try:
                yield made
            finally:
                tasks = [each.running for each in made.pickers]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        reports.group.close()
        await server.stop(None)


def listed(*members: str):
    """Return what is true of a picker that holds a list of these members."""
    return lambda picker: picker.holds.members == members


async def test_pickers_learn_each_other() -> None:
    """Both get the addresses and the list, which was stored before."""
    async with serving() as here:
        first, other = here.picker("p1"), here.picker("p2")
        for each in (first, other):
            await each.until(listed("p1", "p2"))
            assert each.addresses == ("at-p1:1", "at-p2:1")
        assert here.stored[-1]["members"] == ["p1", "p2"]
        assert first.holds == other.holds


async def test_an_id_has_one_picker() -> None:
    """Another one of that name is refused while the first is connected."""
    async with serving() as here:
        first = here.picker("p1")
        await first.until(listed("p1"))
        call = report_pb2_grpc.PickerReportsStub(here.channel).Join()
        await call.write(report_pb2.GroupStanding(picker_id="p1", address="elsewhere:1"))
        assert await call.code() is grpc.StatusCode.ALREADY_EXISTS
        assert await call.details() == "p1 is connected from at-p1:1 already"
        other = here.picker("p2")
        await other.until(lambda picker: picker.addresses == ("at-p1:1", "at-p2:1"))


async def test_who_leaves_waits_until_it_is_not_listed() -> None:
    """Then the others place what it would have placed."""
    async with serving() as here:
        first, other = here.picker("p1"), here.picker("p2")
        await first.until(listed("p1", "p2"))
        await other.until(listed("p1", "p2"))
        await other.join.leave()
        await first.until(listed("p1"))


async def test_who_ends_without_a_word_is_removed(monkeypatch) -> None:
    """Its stream is broken off, as by the end of its process."""
    monkeypatch.setattr(group_list, "GONE_S", 0.0)
    async with serving() as here:
        first, other = here.picker("p1"), here.picker("p2")
        await first.until(listed("p1", "p2"))
        other.running.cancel()
        await first.until(lambda picker: picker.addresses == ("at-p1:1",))
        await first.until(listed("p1"))


async def test_who_may_be_removed_while_the_list_is_looked_at_is_removed() -> None:
    """By its own timer: the look that came just before would otherwise have ended it."""
    # Of the looks at the clock the third is just before that time, and the next one just after.
    times = itertools.chain([0.0, 0.0], itertools.count(group_list.GONE_S - 0.001, 0.002))
    group, stored = PickerGroup(clock=times.__next__, life=1), asyncio.Event()
    loop = asyncio.get_running_loop()
    both = group_list.ListedPickers(1, 1, ("p1", "p2"), agreed=True)
    group.restore(json.dumps(both._asdict()))
    group.store = lambda _: loop.call_soon_threadsafe(stored.set)
    group._roster.told("p1", group_list.PickerStanding("at-p1:1", True, True, both))
    group._roster.left("p2", 0.0)
    await group._settle()
    async with asyncio.timeout(30):
        await stored.wait()
    group.close()


async def test_a_restart_goes_on_with_the_list() -> None:
    """Of its members one is back; another one is added to them, not put in their place."""
    async with serving() as before:
        for name in ("p1", "p2"):
            before.picker(name)
        kept = await before.until_agreed("p1", "p2")
    async with serving() as after:
        after.reports.group.restore(kept)
        first, new = after.picker("p1"), after.picker("p3")
        await first.until(lambda picker: picker.addresses == ("at-p1:1", "at-p3:1"))
        await new.until(lambda picker: {"p1", "p2"} <= set(picker.holds.members))


async def test_a_list_that_cannot_be_stored_is_not_sent() -> None:
    """A restart would forget it, and make another one of that number."""
    async with serving() as here:

        def full(_: str) -> None:
            raise StoreError("the disk is full")

        here.reports.group.store = full
        picker = here.picker("p1")
        await picker.until(lambda picker: picker.addresses == ("at-p1:1",))
        assert picker.holds == Listed()


async def test_a_picker_speaks_for_itself_alone() -> None:
    """What its certificate does not name it cannot join as."""
    async with serving(lambda *_: "p1: this certificate names p2") as here:
        call = report_pb2_grpc.PickerReportsStub(here.channel).Join()
        await call.write(report_pb2.GroupStanding(picker_id="p1", address="at-p2:1"))
        with pytest.raises(grpc.aio.AioRpcError, match="names p2") as told:
            await call.read()
        assert told.value.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    "standing",
    [
        report_pb2.GroupStanding(address="a:1"),
        report_pb2.GroupStanding(picker_id="p1"),
        report_pb2.GroupStanding(picker_id="p1", address="a" * 257),
        report_pb2.GroupStanding(
            picker_id="p1", address="a:1", holds=report_pb2.GroupList(members=["p"] * 65)
        ),
        report_pb2.GroupStanding(
            picker_id="p1", address="a:1", holds=report_pb2.GroupList(number=2**63)
        ),
    ],
    ids=["no id", "no address", "a long address", "many members", "a large number"],
)
async def test_what_breaks_a_bound_is_refused(standing) -> None:
    """Nothing of it is kept."""
    async with serving() as here:
        call = report_pb2_grpc.PickerReportsStub(here.channel).Join()
        await call.write(standing)
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await call.read()
        assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert here.stored == []
