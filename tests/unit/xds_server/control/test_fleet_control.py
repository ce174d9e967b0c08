"""The single writer of the fleet."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import closing

import pytest

from support.controls import TEXT, WAIT, World, settle, weight
from support.fleets import endpoint, fleet, pool
from tidegate_api.names import CLUSTER_TYPE
from xds_server.control import fleet_control, operation, rollout
from xds_server.control.operation import Busy, ChangeOptions
from xds_server.fleet.load import FleetError
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.revision import FleetState, text_hash
from xds_server.fleet.store import RevisionStore, StoreError


async def test_the_first_fleet_is_revision_1(world: World) -> None:
    """It is published without an earlier state."""
    assert world.control.revision == 1
    assert world.revisions == [1]
    assert world.publisher.labels() == ["add", "use"]


async def test_without_a_fleet_there_is_nothing_to_change() -> None:
    """Before the start every change is an error at once."""
    with closing(RevisionStore(None)) as store:
        world = World(store)
        assert world.control.revision == 0
        with pytest.raises(RuntimeError, match="no fleet yet"):
            _ = world.control.fleet
        with pytest.raises(RuntimeError, match="no fleet yet"):
            await world.weigh(stable=1)


async def test_a_change_is_stored_and_published(world: World) -> None:
    """With author, reason and differences."""
    change = await world.weigh(WAIT, canary=30)
    assert change.revision == 2
    assert change.changes == ("pool llm: variant canary weight 10 -> 30",)
    assert change.outcome is not None
    assert change.outcome.acked == 2
    (newest, _) = await world.control.revisions(10)
    assert (newest.author, newest.reason, newest.changes) == ("ann", "because", change.changes)
    assert newest.at_unix_ms == 1_700_000_000_000
    assert weight(world.control) == 30
    assert world.publisher.labels() == ["urgent", "add", "use", "switch", "stop", "remove"]


async def test_authors_and_reasons_are_bounded(world: World) -> None:
    """Long texts are truncated in the history."""
    options = ChangeOptions("a" * 1000, "r" * 5000)
    await world.weigh(options, canary=30)
    (newest, _) = await world.control.revisions(10)
    assert (len(newest.author), len(newest.reason)) == (128, 1024)


async def test_a_dry_run_changes_nothing(world: World) -> None:
    """It returns the differences."""
    options = ChangeOptions(dry_run=True, wait=True)
    change = await world.weigh(options, canary=30)
    assert change.changes == ("pool llm: variant canary weight 10 -> 30",)
    assert (change.revision, change.outcome) == (1, None)
    assert weight(world.control) == 10
    assert len(world.publisher.published) == 1


async def test_a_change_without_differences_makes_no_revision(world: World) -> None:
    """A caller that waits still gets the clients' acknowledgement."""
    change = await world.weigh(WAIT, canary=10)
    assert (change.revision, change.changes) == (1, ())
    assert change.outcome is not None
    assert change.outcome.state == "done"
    assert len(world.publisher.published) == 1


async def test_a_bad_fleet_changes_nothing(world: World) -> None:
    """Rules are checked before anything is stored."""
    with pytest.raises(FleetError, match="all weights"):
        await world.weigh(WAIT, stable=0, canary=0)
    assert world.control.revision == 1
    assert len(world.publisher.published) == 1


async def test_what_cannot_be_built_is_not_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resources are built before the revision is stored."""

    def refuse(_old, _new):
        raise ValueError("no such resource")

    monkeypatch.setattr(rollout, "plan", lambda _old, _new, _memo: refuse(_old, _new))
    with pytest.raises(ValueError, match="no such resource"):
        await world.weigh(WAIT, canary=30)
    assert len(await world.control.revisions(10)) == 1
    assert weight(world.control) == 10


async def test_what_cannot_be_stored_is_not_published(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be lost at a restart."""

    def full(_state) -> None:
        raise StoreError("disk full")

    monkeypatch.setattr(world.store, "append", full)
    with pytest.raises(StoreError, match="disk full"):
        await world.weigh(WAIT, canary=30)
    assert weight(world.control) == 10
    assert len(world.publisher.published) == 1


async def test_a_replica_drains(world: World) -> None:
    """The last stage waits for it."""
    await world.drain("r1")
    assert world.publisher.published[-1].stages[-1].wait_for_drained == {"r1"}


async def test_a_rollback_is_a_new_revision(world: World) -> None:
    """Earlier revisions stay in the history."""
    await world.weigh(canary=30)
    change = await world.control.rollback(1, ChangeOptions())
    assert change.revision == 3
    assert weight(world.control) == 10


async def test_applying_is_exact(world: World) -> None:
    """The applied fleet replaces everything, including weights set at run time."""
    await world.weigh(canary=30)
    await world.control.apply(fleet(), ChangeOptions())
    assert weight(world.control) == 10


async def test_an_edited_file_keeps_run_time_weights(world: World) -> None:
    """Those that the edit did not change."""
    await world.weigh(canary=30)
    edited = fleet(pool(default=True, routing={"fallbacks": 1})).model_dump_json()
    change = await world.control.apply_file(edited, "fleet.yaml")
    assert change.changes == ("pool llm: routing.fallbacks 2 -> 1",)
    assert weight(world.control) == 30


async def test_the_same_file_is_not_applied_twice(world: World) -> None:
    """Not even after operators have changed values of it."""
    await world.control.apply(fleet(pool("other")), ChangeOptions())
    await world.control.apply_file(TEXT, "fleet.yaml")
    assert world.control.fleet.pools[0].name == "other"


async def test_a_bad_file_leaves_the_fleet(world: World) -> None:
    """The reason is shown until the file is valid."""
    with pytest.raises(FleetError):
        await world.control.apply_file("pools: []", "fleet.yaml")
    assert world.control.file_error.startswith("fleet.yaml:1: pools: empty")
    assert world.control.revision == 1
    await world.control.apply_file(TEXT, "fleet.yaml")
    assert world.control.file_error == ""


async def test_a_comment_in_the_file_makes_no_revision(world: World) -> None:
    """Its text is stored nevertheless."""
    await world.control.apply_file(TEXT + "\n# comment", "fleet.yaml")
    assert world.control.revision == 1
    latest = world.store.latest()
    assert latest is not None
    assert latest.file is not None
    assert latest.file.text_hash == text_hash(TEXT + "\n# comment")


async def test_a_restart_with_nothing_changed_is_the_same(tmp_path) -> None:
    """The same revision, the same incarnations, the same resources."""
    published = []
    for _ in range(2):
        with closing(RevisionStore(tmp_path)) as store:
            world = World(store)
            await world.control.start(TEXT, "fleet.yaml")
            await world.weigh(canary=30)
            published.append(world.publisher.published[-1].stages[-2:])
            assert world.control.revision == 2
            await world.control.stop()
    final = [{stage.audience: stage.snapshot for stage in stages} for stages in published]
    assert final[0] == final[1]


async def test_a_restart_recalls_what_clients_may_still_route_to(tmp_path) -> None:
    """A kill in the middle of a change leaves Envoys with routes to withdrawn variants."""
    with closing(RevisionStore(tmp_path)) as store:
        world = World(store)
        await world.control.start(TEXT, "fleet.yaml")
        await world.quiet()
        world.publisher.at_once = False
        renamed = json.loads(TEXT)
        renamed["pools"][0]["variants"][1]["name"] = "other"
        for each in renamed["pools"][0]["endpoints"]:
            if each["variant"] == "canary":
                each["variant"] = "other"
        await world.control.apply(Fleet.model_validate(renamed), ChangeOptions())
    with closing(RevisionStore(tmp_path)) as store:
        world = World(store)
        await world.control.start(TEXT, "fleet.yaml")
        (early, first, _) = world.publisher.published[0].stages
        assert (early.audience, early.urgent) == ("picker", True)
        (past,) = first.past
        gone = past.resources(CLUSTER_TYPE).keys() - first.snapshot.resources(CLUSTER_TYPE).keys()
        assert gone == {"llm/canary/http", "llm/canary/grpc"}
        await world.control.stop()


async def test_a_restart_applies_an_edited_file(tmp_path) -> None:
    """An edit while the server was stopped makes one more revision."""
    with closing(RevisionStore(tmp_path)) as store:
        await World(store).control.start(TEXT, "fleet.yaml")
    edited = fleet(pool(default=True, routing={"fallbacks": 1})).model_dump_json()
    with closing(RevisionStore(tmp_path)) as store:
        world = World(store)
        change = await world.control.start(edited, "fleet.yaml")
        assert change.revision == 2
        assert world.revisions == [1, 2]
        await world.control.stop()


async def test_a_new_replica_gets_its_own_incarnation(world: World) -> None:
    """The newest state contains it, with the time of joining."""
    grown = pool(default=True, endpoints=[*pool()["endpoints"], endpoint(4)])
    await world.control.apply(fleet(grown), ChangeOptions())
    latest = world.store.latest()
    assert latest is not None
    assert latest.incarnations["r4"] == (2, 1_700_000_000_000)
    assert latest.incarnations["r1"] == (1, 0)


async def test_changes_are_made_one_after_the_other(world: World) -> None:
    """Each change is based on the result of the one before."""
    await asyncio.gather(
        world.weigh(canary=30),
        world.drain("r1"),
        world.weigh(stable=70),
    )
    assert world.control.revision == 4
    assert (weight(world.control, "stable"), weight(world.control)) == (70, 30)
    assert world.control.fleet.pools[0].endpoints[0].draining


async def test_waiting_changes_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes up to the bound wait; a further one is refused."""
    monkeypatch.setattr(fleet_control, "MAX_WAITING", 2)
    results = await asyncio.gather(
        *(world.weigh(canary=n) for n in (1, 2, 3)),
        return_exceptions=True,
    )
    assert [isinstance(result, Busy) for result in results] == [False, False, True]


async def test_waiting_texts_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts up to the bound wait; one alone is always taken."""
    monkeypatch.setattr(fleet_control, "MAX_WAITING_CHARS", len(TEXT) * 2 - 1)
    calls = [world.control.apply_text(TEXT, "x", ChangeOptions()) for _ in range(2)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(result, Busy) for result in results] == [False, True]
    monkeypatch.setattr(fleet_control, "MAX_WAITING_CHARS", 1)
    assert (await world.control.apply_text(TEXT, "x", ChangeOptions())).revision == 1


class SlowLoading:
    """Loading that waits in its thread until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._load = operation.load_text
        monkeypatch.setattr(operation, "load_text", self.load)

    def load(self, text: str, source: str) -> Fleet:
        """Load after the signal."""
        self.begun.set()
        assert self.go_on.wait(60)
        return self._load(text, source)


async def test_a_later_change_does_not_overtake_one_that_loads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator's order of calls is the order of the revisions, however long a text takes."""
    slow = SlowLoading(monkeypatch)
    text = fleet(pool(default=True, drop_overload=5)).model_dump_json()
    first = asyncio.create_task(world.control.apply_text(text, "x", ChangeOptions()))
    await asyncio.to_thread(slow.begun.wait, 60)
    second = asyncio.create_task(world.weigh(canary=30))
    await settle()
    assert not second.done()
    slow.go_on.set()
    assert ((await first).revision, (await second).revision) == (2, 3)
    assert (weight(world.control), world.control.fleet.pools[0].drop_overload) == (30, 5)


async def test_findings_are_published_while_a_text_loads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sick replica is not kept in use by an operator's large fleet."""
    slow = SlowLoading(monkeypatch)
    loading = asyncio.create_task(world.control.apply_text(TEXT, "x", ChangeOptions()))
    await asyncio.to_thread(slow.begun.wait, 60)
    before = len(world.publisher.published)
    await world.control.publish_sick({})
    assert len(world.publisher.published) == before + 1
    slow.go_on.set()
    await loading


async def test_a_change_is_finished_without_its_caller(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled call leaves no partial revision."""
    hung_up, append = threading.Event(), world.store.append

    def append_then(state: FleetState) -> None:
        assert hung_up.wait(60)
        append(state)

    monkeypatch.setattr(world.store, "append", append_then)
    task = asyncio.create_task(world.weigh(canary=30))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    hung_up.set()
    await world.weigh(stable=70)
    assert world.control.revision == 3
    assert weight(world.control) == 30


async def test_a_callers_wait_is_bounded(world: World) -> None:
    """Without an acknowledgement by then there is no time."""
    world.publisher.at_once = False
    change = await world.weigh(ChangeOptions(wait=True, timeout_s=0), canary=30)
    assert change.outcome is not None
    assert (change.outcome.state, change.elapsed_s) == ("waiting", None)


async def test_without_waiting_there_is_no_outcome(world: World) -> None:
    """The revision is in force; its publication continues."""
    world.publisher.at_once = False
    change = await world.weigh(canary=30)
    assert (change.revision, change.outcome, change.elapsed_s) == (2, None, None)


async def test_a_superseded_change_is_acknowledged_with_its_successor(world: World) -> None:
    """The newer revision contains the change, of which the older had sent a part."""
    world.publisher.at_once = False
    first = asyncio.create_task(world.weigh(WAIT, canary=30))
    await world.publisher.begun()
    world.publisher.published[-1].channels = ("RTDS",)
    await world.drain("r1")
    world.now += 2
    world.publisher.published[-1].end()
    change = await first
    assert change.outcome is not None
    assert (change.revision, change.outcome.state, change.elapsed_s) == (2, "done", 2.0)
    assert change.outcome.channels == ("RTDS", "RDS")


async def test_what_is_observed_supersedes_no_change(world: World) -> None:
    """Nor does it wait: it is told with a later publication, or once none runs."""
    world.publisher.at_once = False
    await world.weigh(canary=30)
    assert not await world.control.publish_placed(())
    assert not await world.control.publish_unpicked((("llm/stable/http", 8),))
    assert len(world.publisher.published) == 2
    world.publisher.published[-1].end()
    assert await world.control.publish_unpicked((("llm/stable/http", 8),))
    assert len(world.publisher.published) == 3
