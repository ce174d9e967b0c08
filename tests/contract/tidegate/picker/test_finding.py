"""A picker without a control server finds replicas by itself, one process for all."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from support.fleets import endpoint, fleet, pool
from support.names import NameServer
from support.traffic import eventually
from tidegate.picker import feed as feed_module
from tidegate.picker.feed import FileFeed
from tidegate.picker.finding import ReplicaFinder
from xds_server.fleet.members.members import Members


class Process:
    """A process of a picker, with the pools that it has."""

    def __init__(self, folder: Path, dns: tuple[str, ...] = ()) -> None:
        self.pools = {}
        self.feed = FileFeed(folder / "fleet.yaml", folder, self.take, seed=7, dns=dns)
        self.task: asyncio.Task[None] | None = None

    def take(self, pools) -> None:
        """Put pools in force."""
        self.pools = pools

    def start(self) -> None:
        """Run."""
        self.task = asyncio.create_task(self.feed.run())

    async def stop(self) -> None:
        """End."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    @property
    def found(self) -> dict[str, tuple[int, bool]]:
        """Incarnation and drain of each replica, by id."""
        if not self.pools:
            return {}
        return {e.key.id: (e.key.incarnation, e.draining) for e in self.pools["llm"].endpoints}

    async def has(self, *ids: str) -> dict[str, tuple[int, bool]]:
        """Wait until exactly these are active."""

        async def same() -> bool:
            return {i for i, (_, draining) in self.found.items() if not draining} == set(ids)

        assert await eventually(same), self.found
        return self.found


def write(folder: Path, **settings) -> None:
    """Write the fleet file."""
    made = pool(variants=[{"name": "stable"}], membership={"admit": "found"}, **settings)
    (folder / "fleet.yaml").write_text(json.dumps({"pools": [made]}))


def listed(folder: Path, *numbers: int) -> None:
    """Replace the file of replicas."""
    made = folder / "replicas.new"
    made.write_text(json.dumps([{"id": f"f{n}", "http": f"127.0.0.1:{8000 + n}"} for n in numbers]))
    made.rename(folder / "replicas.json")


def source(folder: Path) -> dict[str, object]:
    """Return settings with the file of replicas."""
    return {"file": str(folder / "replicas.json"), "protocols": ["http"]}


@pytest.fixture
async def processes(tmp_path):
    """Two processes of one picker; their replicas come from a file."""
    listed(tmp_path, 1, 2, 3)
    write(tmp_path, endpoints=[], endpoints_from=[source(tmp_path)])
    made = [Process(tmp_path), Process(tmp_path)]
    for each in made:
        each.start()
    yield made
    for each in made:
        await each.stop()


async def test_all_processes_have_what_one_finds(tmp_path, processes):
    """The same replicas with the same incarnations; a vanished one drains in both."""
    first, second = processes
    assert await first.has("f1", "f2", "f3") == await second.has("f1", "f2", "f3")
    async with asyncio.timeout(30):
        await asyncio.gather(*(each.feed.ready.wait() for each in processes))

    async def told() -> bool:
        states = [each.feed.state()["found"] for each in processes]
        finding = [each for each in states if each["finds"]]
        return [
            (each["sources"][0]["endpoints"], each["pools"][0]["active"]) for each in finding
        ] == [(3, 3)]

    assert await eventually(told), [each.feed.state() for each in processes]
    listed(tmp_path, 1, 2, 4)
    assert await first.has("f1", "f2", "f4") == await second.has("f1", "f2", "f4")
    assert first.found["f3"][1], "it drains: no report says that it is idle"


async def test_another_process_goes_on_with_the_members(tmp_path, processes):
    """Where the finding one ends; incarnations stay."""
    first, second = processes
    before = await first.has("f1", "f2", "f3")
    await second.has("f1", "f2", "f3")
    finder, other = (first, second) if first.feed.state()["found"]["finds"] else (second, first)
    await finder.stop()
    listed(tmp_path, 1, 2, 3, 4)
    after = await other.has("f1", "f2", "f3", "f4")
    assert {i: after[i] for i in before} == before
    assert other.feed.state()["found"]["finds"]


async def test_what_more_than_half_leave_is_held_and_an_edit_lets_it_go(tmp_path, processes):
    """Without a control server there is no `tidegate confirm`: the log names the remedy."""
    first, second = processes
    await first.has("f1", "f2", "f3")
    await second.has("f1", "f2", "f3")
    with capture_logs() as logged:
        listed(tmp_path, 1)

        async def said() -> bool:
            return any(each["event"] == "membership_held" for each in logged)

        assert await eventually(said)
    (held,) = (e for e in logged if e["event"] == "membership_held")
    assert held["remedy"] == "list their ids in `drained` of pool llm in the fleet file"
    await first.has("f1", "f2", "f3")
    (shown,) = [
        each["pools"][0]
        for each in (first.feed.state()["found"], second.feed.state()["found"])
        if each["finds"]
    ]
    assert (shown["hold"], shown["remedy"]) == (("f2", "f3"), held["remedy"])
    write(tmp_path, endpoints=[], endpoints_from=[source(tmp_path)], drained=["f2", "f3"])
    await first.has("f1")
    await second.has("f1")
    write(tmp_path, endpoints=[endpoint(9)])
    await first.has("r9")
    await second.has("r9")


async def test_names_are_looked_up(tmp_path):
    """At the name servers of `--dns`; what is written stays beside them."""
    async with NameServer() as server:
        server.set("t.example.", "A", ["10.0.0.1"])
        named = {"id": "n", "http": "t.example:8000"}
        write(tmp_path, endpoints=[endpoint(1), named])
        made = Process(tmp_path, ("{}:{}".format(*server.address),))
        made.start()
        await made.has("r1", "n")
        (found,) = (e for e in made.pools["llm"].endpoints if e.key.id == "n")
        assert found.http == "10.0.0.1:8000"
        await made.stop()


async def test_a_picker_without_any_replica_is_not_ready(tmp_path, monkeypatch):
    """Whatever the time: its sources are silent, so nothing is known of the fleet."""
    monkeypatch.setattr(feed_module, "FIRST_S", 0.0)
    write(tmp_path, endpoints=[], endpoints_from=[source(tmp_path)])
    made = Process(tmp_path)
    for _ in range(2):
        await made.feed.look()
    made.start()

    async def told() -> bool:
        found = made.feed.state()["found"]
        return found["finds"] and found["sources"] and found["sources"][0]["trouble"] != ""

    assert await eventually(told)
    assert not made.feed.ready.is_set()
    listed(tmp_path, 1)
    async with asyncio.timeout(30):
        await made.feed.ready.wait()
    assert made.feed.state()["found"]["pools"][0]["nothing"] is None
    await made.stop()


@pytest.mark.parametrize("other", ["answers", "serves"])
async def test_a_pool_without_a_replica_delays_readiness_within_a_bound(
    tmp_path, monkeypatch, other
):
    """Once its source has said so, or where another pool has one."""
    monkeypatch.setattr(feed_module, "FIRST_S", 0.0)
    settings = {"variants": [{"name": "stable"}], "membership": {"admit": "found"}}
    empty = pool(endpoints=[], endpoints_from=[source(tmp_path)], **settings)
    pools = [empty]
    if other == "serves":
        more = {"match": {"models": ["other"]}, "default": True}
        pools.append(pool("other", endpoints=[endpoint(9)], **settings, **more))
    else:
        row = {"id": "f1", "http": "127.0.0.1:8001", "serving": False}
        (tmp_path / "replicas.json").write_text(json.dumps([row]))
    (tmp_path / "fleet.yaml").write_text(json.dumps({"pools": pools}))
    made = Process(tmp_path)
    for _ in range(2):
        await made.feed.look()
    made.start()
    async with asyncio.timeout(30):
        await made.feed.ready.wait()
    assert made.pools["llm"].endpoints == ()
    if other == "answers":

        async def said() -> bool:
            (shown,) = made.feed.state()["found"]["pools"]
            return shown["nothing"] == "1 replicas are listed, and none of them as able to serve"

        assert await eventually(said)
    await made.stop()


class Fleet:
    """Takes members."""

    def __init__(self) -> None:
        self.written = fleet(pool(endpoints=[], endpoints_from=[{"file": "/nowhere"}]))
        self.taken: list[Members] = []
        self.refuses = False

    async def publish_members(self, members: Members) -> None:
        """Keep them, or refuse them."""
        if self.refuses:
            raise LookupError
        self.taken.append(members)


async def test_members_that_cannot_be_read_are_left(tmp_path):
    """Those in force stay, and what comes next is read."""
    following = ReplicaFinder(tmp_path, made := Fleet())
    (tmp_path / "members").write_bytes(b"\xff{")
    assert await following._follow() is None
    (tmp_path / "members").write_text("{}")
    assert await following._follow() == Members({})
    assert await following._follow() is None
    assert len(made.taken) == 1


async def test_members_that_are_refused_are_tried_again(tmp_path):
    """The fleet file of this process may be older than that of the one that finds."""
    following = ReplicaFinder(tmp_path, made := Fleet())
    (tmp_path / "members").write_text("{}")
    made.refuses = True
    with capture_logs() as logged:
        assert await following._follow() is None
    assert [each["event"] for each in logged] == ["membership_not_published"]
    made.refuses = False
    assert await following._follow() == Members({})


async def test_members_that_cannot_be_written_cost_a_warning(tmp_path):
    """The process that finds goes on; the others keep what they have."""
    finding = ReplicaFinder(tmp_path / "gone", Fleet())
    with capture_logs() as logged:
        await finding._write(Members())
    assert [each["event"] for each in logged] == ["membership_not_stored"]
    finding.notify()
