"""Membership over sources that read files and ask a name server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.findings import DNS, FILE, Finding
from support.fleets import fleet, pool
from support.names import NameServer
from support.tries import TIMES, tries
from xds_server.applications.discovery.sources.listed import Unreadable, read_endpoints
from xds_server.applications.discovery.sources.resolver import Resolver
from xds_server.applications.discovery.table import source_of
from xds_server.fleet.members.members import Members
from xds_server.fleet.rules.fleet import problems
from xds_server.fleet.store import RevisionStore


@pytest.fixture
def store() -> Iterator[RevisionStore]:
    """Return a store in memory."""
    with closing(RevisionStore(None)) as made:
        yield made


@pytest.mark.timeout(240 * TIMES)
async def test_churn_never_empties_the_fleet_and_ends_equal_to_the_sources(
    store: RevisionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random events: files half-written, DNS answers lost, wrong, empty and broken."""
    chance = random.Random(17)
    async with NameServer() as server:
        made = Finding(store, Resolver([server.address], 0.03))
        await made.start()
        (origin,) = (w.origin for k, w in made.membership._pools["llm"].sources.items() if k == DNS)
        names = source_of(origin, made.tools)
        monkeypatch.setattr(names, "_sleep", None)
        files, hosts = {1, 2, 3, 4}, {101, 102, 103, 104}
        alive = False
        for _ in range(tries(250)):
            await event(made, server, names, chance, files, hosts)
            told = await made.step(chance.choice([0.05, 0.2, 1.0, 3.0, 40.0]))
            assert not problems(made.world.control.fleet)
            active = [name for name, draining in told.items() if not draining]
            assert active or not alive
            alive = alive or bool(active)
        server.fault = ""
        for number in range(12):
            write(made, "".join(text(files)))
            server.set("t.example.", "A", [f"10.0.0.{n}" for n in sorted(hosts)])
            await look(made, names)
            made.membership.confirm("llm")
            told = await made.step(20.0 if number else 700.0)
        assert set(told) == {f"r{n}" for n in files} | {f"10.0.0.{n}:8001" for n in hosts}
        assert not any(told.values())
        assert made.world.control.revision == 1
        await made.stop()


async def event(made, server, names, chance, files, hosts) -> None:
    """Let one thing happen."""
    kind = chance.random()
    if kind < 0.5:
        for known, least in ((files, 0), (hosts, 100)):
            if chance.random() < 0.5:
                known.symmetric_difference_update({least + chance.randint(1, 12)})
                known.add(least + 1)
    if kind < 0.25:
        whole = text(files)
        write(made, whole if chance.random() < 0.6 else whole[: chance.randint(0, len(whole))])
    elif kind < 0.3:
        write(made, "endpoints: []")
    elif kind < 0.4:
        write(made, text({chance.randint(50, 60)}))
    else:
        server.fault = chance.choice(["", "", "", "", "lost", "refused", "empty", "missing"])
        wrong = {chance.randint(200, 209)} if chance.random() < 0.1 else hosts
        server.set("t.example.", "A", [f"10.0.0.{n}" for n in sorted(wrong)])
        await look(made, names)


def text(files: set[int]) -> str:
    """Return the file of these replicas."""
    lines = [f'- {{id: r{n}, http: "10.0.0.{n}:8000", grpc: "10.0.0.{n}:8001"}}\n' for n in files]
    return "endpoints:\n" + "".join(lines)


def write(made: Finding, content: str) -> None:
    """Let the file's source read a text."""
    try:
        found = read_endpoints(content)
    except Unreadable as error:
        made.sources[FILE].trouble(str(error))
    else:
        made.sources[FILE].found(found)


async def look(made: Finding, names) -> None:
    """Let the name's source look once."""
    await names.step(made.sources[DNS].found, made.sources[DNS].trouble)


async def test_the_real_sources_run(tmp_path: Path, store: RevisionStore) -> None:
    """A file on disk becomes members, with tasks and timers as in the server."""
    path = tmp_path / "replicas.yaml"
    path.write_text(text({1, 2}))
    made = Finding(store)
    made.membership._make = source_of
    spec = pool(
        variants=[{"name": "stable"}],
        endpoints=[],
        endpoints_from=[{"file": str(path)}],
        membership={"admit": "found"},
    )
    await made.world.control.start(fleet(spec).model_dump_json(), "fleet.yaml")
    running = asyncio.create_task(made.membership.run(Members()))
    async with asyncio.timeout(20):
        await made.world.publisher.begun()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert made.told() == {"r1": False, "r2": False}
    await made.world.control.stop()
