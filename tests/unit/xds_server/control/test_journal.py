"""Revisions on their way to a store that cannot be written, and back."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.controls import TEXT, WAIT, World, weight
from support.fleets import fleet, pool
from xds_server.control import journal as module
from xds_server.control.journal import Journal
from xds_server.control.operation import ChangeOptions
from xds_server.fleet.change import set_drop_overload
from xds_server.fleet.revision import FileState, FleetState, Revision
from xds_server.fleet.store import RevisionStore, StoreError, StoreSilent


def state(number: int, outcome: str = "") -> FleetState:
    """Return a state whose pool is named after its number."""
    revision = Revision(number, 1000, "ann", "why", (), outcome)
    return FleetState(revision, fleet(pool(f"p{number}")), {"r1": (1, 0)}, None)


class Faulty(RevisionStore):
    """A store in memory whose writes fail while ``broken``; reads never do."""

    broken = False
    fault = StoreError("disk full")

    def _transaction(self):
        if self.broken:
            raise self.fault
        return super()._transaction()


class Sleeper:
    """Waits until the test lets it go on."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asleep = asyncio.Event()

    async def __call__(self, _: float) -> None:
        self.asleep.set()
        await self.go.wait()
        self.go.clear()


@asynccontextmanager
async def journals():
    """Make a store, a journal over it, and the clock of its attempts."""
    sleeper = Sleeper()
    with closing(Faulty(None)) as store:
        journal = Journal(store, sleeper)
        yield store, journal, sleeper
        await journal.stop()


async def numbers(journal: Journal) -> list[int]:
    """Return the history, newest first."""
    return [revision.number for revision in await journal.revisions(1000)]


async def test_relief_is_held_while_the_store_cannot_be_written() -> None:
    """It is in the history, and its fleet can be read."""
    async with journals() as (store, journal, _):
        await journal.append(state(1), relief=False)
        store.broken = True
        await journal.append(state(2), relief=True)
        assert (journal.held, journal.fault) == ((2,), "disk full")
        assert await numbers(journal) == [2, 1]
        assert (await journal.fleet(2)).pools[0].name == "p2"
        assert [r.number for r in store.revisions(9)] == [1]


async def test_relief_waits_for_a_shared_store_that_does_not_answer() -> None:
    """Another server may lead next, without what is held here; other changes are refused."""
    async with journals() as (store, journal, sleeper):
        store.broken, store.fault = True, StoreSilent("etcd does not answer")
        with pytest.raises(StoreError, match="only drains"):
            await journal.append(state(1), relief=False)
        journal._retrying.cancel()
        sleeper.asleep.clear()
        waiting = asyncio.create_task(journal.append(state(1), relief=True))
        await sleeper.asleep.wait()
        assert (journal.held, waiting.done()) == ((), False)
        store.broken = False
        sleeper.go.set()
        await waiting
        assert [r.number for r in store.revisions(9)] == [1]


async def test_what_is_no_relief_is_refused_with_the_reason() -> None:
    """The message says what is wrong and what is possible; nothing is held."""
    async with journals() as (store, journal, _):
        store.broken = True
        with pytest.raises(StoreError, match=r"^disk full; until .* only drains .* shed"):
            await journal.append(state(1), relief=False)
        assert (journal.held, journal.fault) == ((), "disk full")


async def test_what_is_held_is_written_before_the_next_revision() -> None:
    """The order of the history is that of the changes."""
    async with journals() as (store, journal, _):
        store.broken = True
        await journal.append(state(1), relief=True)
        await journal.append(state(2), relief=True)
        store.broken = False
        await journal.append(state(3), relief=False)
        assert [r.number for r in store.revisions(9)] == [3, 2, 1]
        assert (journal.held, journal.fault) == ((), "")


async def test_what_is_held_is_written_without_another_change() -> None:
    """The store is tried again and again."""
    async with journals() as (store, journal, sleeper):
        store.broken = True
        await journal.append(state(1), relief=True)
        await sleeper.asleep.wait()
        sleeper.asleep.clear()
        sleeper.go.set()
        await sleeper.asleep.wait()
        assert journal.held == (1,)
        store.broken = False
        sleeper.go.set()
        await journal._retrying
        assert [r.number for r in store.revisions(9)] == [1]
        assert journal.held == ()


async def test_outcomes_are_held_too() -> None:
    """Of revisions that are stored and of those that are held."""
    async with journals() as (store, journal, _):
        await journal.append(state(1), relief=False)
        store.broken = True
        await journal.append(state(2), relief=True)
        await journal.note(1, "one")
        await journal.note(2, "two")
        assert [r.outcome for r in await journal.revisions(9)] == ["two", "one"]
        store.broken = False
        await journal.append(state(3), relief=False)
        assert [r.outcome for r in store.revisions(9)] == ["", "two", "one"]


async def test_a_revision_counts_as_accepted_by_its_outcome() -> None:
    """Wherever the outcome is."""
    async with journals() as (store, journal, _):
        await journal.append(state(1, "acknowledged by 2 of 2 clients"), relief=False)
        await journal.append(state(2, "refused by envoy-1"), relief=False)
        await journal.append(state(3), relief=False)
        store.broken = True
        await journal.append(state(4), relief=True)
        await journal.note(3, "acknowledged by 1 of 1 clients")
        await journal.note(4, "acknowledged by 1 of 1 clients")
        accepted = [await journal.accepted(n) for n in range(1, 6)]
        assert accepted == [True, False, True, True, False]


async def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest leaves the history; the newest contains its change."""
    monkeypatch.setattr(module, "MAX_HELD", 3)
    async with journals() as (store, journal, _):
        for number in range(1, 11):
            await journal.append(state(number, "x"), relief=False)
        store.broken = True
        for number in range(11, 21):
            await journal.append(state(number), relief=True)
            await journal.note(number - 10, "later")
        assert journal.held == (18, 19, 20)
        assert len(journal._outcomes) == 3


async def test_a_stop_tries_once_more() -> None:
    """What is lost is logged; what can be written is not lost."""
    async with journals() as (store, journal, _):
        store.broken = True
        await journal.append(state(1), relief=True)
        await journal.stop()
        assert journal.held == (1,)
        store.broken = False
        await journal.stop()
        assert [r.number for r in store.revisions(9)] == [1]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(["break", "mend", "relief", "change", "retry"]), max_size=30))
def test_the_history_is_what_was_accepted_in_order(steps: list[str]) -> None:
    """Whenever the store fails: nothing accepted is lost, nothing refused appears."""

    async def walk() -> None:
        async with journals() as (store, journal, _):
            accepted: list[int] = []
            for number, step in enumerate(steps, 1):
                if step in ("break", "mend"):
                    store.broken = step == "break"
                elif step == "retry":
                    await journal._try()
                    assert bool(journal.fault) == store.broken
                else:
                    relief = step == "relief"
                    if store.broken and not relief:
                        with pytest.raises(StoreError):
                            await journal.append(state(number), relief=relief)
                    else:
                        await journal.append(state(number), relief=relief)
                        accepted.append(number)
                assert await numbers(journal) == accepted[::-1]
                stored = [r.number for r in store.revisions(1000)]
                assert stored[::-1] == accepted[: len(stored)]
            store.broken = False
            await journal.stop()
            assert [r.number for r in store.revisions(1000)][::-1] == accepted

    asyncio.run(walk())


# --- the single writer over such a store --------------------------------------------------------


@asynccontextmanager
async def worlds():
    """Make a ``Control`` whose store the test breaks, with a fleet in force."""
    with closing(Faulty(None)) as store:
        world = World(store)
        await world.control.start(TEXT, "fleet.yaml")
        await world.quiet()
        yield world
        store.broken = False
        await world.control.stop()


async def test_drains_and_shed_work_on_a_full_disk() -> None:
    """They are published as ever."""
    async with worlds() as world:
        world.store.broken = True
        change = await world.drain("r1")
        assert change.revision == 2
        assert world.publisher.published[-1].stages[-1].wait_for_drained == {"r1"}
        await world.control.change(
            lambda fleet: set_drop_overload(fleet, "llm", 25), ChangeOptions()
        )
        await world.drain("r1", draining=False)
        assert world.control.revision == 4
        assert world.control.journal.held == (2, 3, 4)


async def test_an_edit_of_the_file_that_only_drains_works_too() -> None:
    """It is the change that counts, not the verb; the file counts as read once it is written."""
    drained = fleet().model_dump(mode="json")
    drained["pools"][0]["endpoints"][0]["draining"] = True
    text = type(fleet()).model_validate(drained).model_dump_json()
    async with worlds() as world:
        world.store.broken = True
        change = await world.control.apply_file(text, "fleet.yaml")
        assert change.revision == 2
        assert world.control.journal.held == (2,)
        world.store.broken = False
        await world.control.journal._try()
        latest = world.store.latest()
        assert latest is not None
        assert isinstance(latest.file, FileState)
        assert latest.fleet.pools[0].endpoints[0].draining


async def test_other_changes_are_refused_on_a_full_disk() -> None:
    """Nothing is published."""
    async with worlds() as world:
        world.store.broken = True
        with pytest.raises(StoreError, match="disk full; until it can be written, only drains"):
            await world.weigh(canary=30)
        assert weight(world.control) == 10
        assert world.control.revision == 1


async def test_a_rollback_works_on_a_full_disk_to_an_accepted_revision_only() -> None:
    """One to a revision that clients refused is no way to safety."""
    async with worlds() as world:
        await world.weigh(WAIT, canary=30)
        await world.quiet()
        world.store.broken = True
        change = await world.control.rollback(1, ChangeOptions())
        assert (change.revision, weight(world.control)) == (3, 10)
        assert world.control.journal.held == (3,)
    async with worlds() as world:
        world.store.append(state(2, "refused by envoy-1 (CDS: bad)"))
        world.store.broken = True
        with pytest.raises(StoreError, match="only drains"):
            await world.control.rollback(2, ChangeOptions())


async def test_the_fallback_from_a_refused_revision_works_on_a_full_disk() -> None:
    """Clients are led back even though this cannot be stored."""
    async with worlds() as world:
        world.publisher.at_once = False
        await world.weigh(canary=30)
        world.store.broken = True
        begun = asyncio.create_task(world.publisher.begun())
        await asyncio.sleep(0)
        world.publisher.published[-1].end("abandoned", stage="switch")
        await begun
        assert weight(world.control) == 10
        assert world.control.revision == 3
        world.publisher.published[-1].end()
        await world.quiet()
        assert world.control.journal.held == (3,)
        assert world.control.refusal.startswith("revision 2 was refused by envoy-1")
