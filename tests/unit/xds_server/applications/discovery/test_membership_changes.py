"""Membership when sources are slow, end, change or break."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from support.findings import DNS, FILE, Finding, Silent, answer
from support.fleets import fleet, pool
from xds_server.applications.discovery import membership
from xds_server.applications.discovery.readiness import Question
from xds_server.control.operation import ChangeOptions
from xds_server.fleet.members.members import Members
from xds_server.fleet.store import RevisionStore


async def test_a_slow_replica_delays_no_other(
    store: RevisionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is asked by itself, one question at a time; one that raises is not ready."""
    monkeypatch.setattr(membership, "PROBE_EVERY_S", 0.0)
    made = Finding(store)
    spec = pool(variants=[{"name": "stable"}], endpoints=[], endpoints_from=[{"file": "/f"}])
    await made.start(fleet(spec))
    made.sources[FILE].found(answer(1))
    await made.step()
    made.sources[FILE].found(answer(1, 2, 3, 4))
    asked: list[str] = []

    async def is_ready(question: Question) -> bool:
        asked.append(question.http or "")
        if question.http == "10.0.0.2:8000":
            await asyncio.Event().wait()
        if question.http == "10.0.0.3:8000" and asked.count(question.http) == 1:
            raise LookupError("no")
        return True

    made.membership._is_ready = is_ready
    with capture_logs() as logged:
        task = asyncio.create_task(made.membership._probe_all())
        async with asyncio.timeout(20):
            while {e.spec.id for e in made.membership._pools["llm"].admission.members} < {
                *("r1", "r3", "r4")
            }:
                await asyncio.sleep(0)
                await made.step()
    assert asked.count("10.0.0.2:8000") == 1
    assert [each["event"] for each in logged if each["log_level"] == "warning"] == [
        "readiness_failed"
    ]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not made.membership._asked
    await made.stop()


async def test_a_pool_that_ends_while_a_replica_is_asked(store: RevisionStore) -> None:
    """Its answer is needed no longer, and nothing is asked."""
    made = Finding(store)
    await made.start()
    made.sources[FILE].found(answer(1))
    (waiting,) = [e.spec for e in made.membership._pools["llm"].admission._replicas.values()]
    await made.membership._probe("gone", FILE, "r1", waiting)
    assert not made.asked
    await made.stop()


OTHER = fleet(
    pool(
        variants=[{"name": "stable"}],
        endpoints=[],
        endpoints_from=[{"file": "/other"}],
        membership={"admit": "found", "drain": 20},
    )
)


async def test_a_rollback_to_other_sources_drains_what_the_present_ones_found(
    finding: Finding,
) -> None:
    """Once each of those has answered: an operator said so, and the pool is never empty."""
    control = finding.world.control
    await control.apply(OTHER, ChangeOptions())
    await finding.step()
    await asyncio.sleep(0)
    finding.sources["file /other"].found(answer(5, 6))
    assert await finding.step() == {"r5": False, "r6": False}
    change = await control.rollback(1, ChangeOptions())
    assert change.revision == 3
    here = {"r1": False, "r2": False, "r7": False}
    assert await finding.step() == {"r5": False, "r6": False}, "nothing else is known yet"
    await asyncio.sleep(0)
    finding.sources[FILE].found(answer(1, 2))
    assert not any((await finding.step()).values())
    finding.sources[DNS].found(answer(7))
    finding.in_flight = {"r5": 3}
    assert await finding.step() == {**here, "r5": True, "r6": True}
    assert await finding.step(6) == {**here, "r5": True}
    finding.in_flight.clear()
    assert await finding.step(1) == here
    assert {each.source for each in finding.membership.sources()} == {FILE, DNS}


async def test_sources_and_pools_are_shown(finding: Finding) -> None:
    """Age and number of the last answer, the trouble since, and what each pool has."""
    first, second = finding.membership.sources()
    assert (first.source, first.endpoints, first.age_s) == (FILE, None, None)
    with capture_logs() as logged:
        finding.sources[FILE].found(answer(1, 2, 3))
        await finding.step(5)
        finding.sources[FILE].trouble("line 1: no")
        finding.sources[FILE].trouble("line 2: no")
        finding.sources[FILE].found(answer(1))
        await finding.step()
    first, second = finding.membership.sources()
    assert (first.endpoints, first.age_s, first.trouble) == (1, 0.0, "line 2: no")
    assert second.endpoints is None
    (shown,) = finding.membership.pools()
    assert (shown.pool, shown.counts["held"], shown.hold.of) == ("llm", 2, 3)
    assert finding.membership.now() == finding.world.now
    with capture_logs() as more:
        finding.sources[FILE].trouble("")
        finding.sources[FILE].found(answer(1, 2, 3))
        await finding.step()
    events = [each["event"] for each in (*logged, *more) if each["event"] != "revision_stored"]
    assert events == [
        "membership_changed",
        "source_failed",
        "membership_held",
        "source_answers_again",
        "membership_released",
    ]
    assert "tidegate confirm llm" in str(logged)


async def test_a_confirmation_is_logged(finding: Finding) -> None:
    """It takes replicas away."""
    finding.sources[FILE].found(answer(1, 2))
    await finding.step()
    finding.sources[FILE].found(answer())
    await finding.step()
    with capture_logs() as logged:
        assert finding.membership.confirm("llm") == 2
    assert [each["event"] for each in logged] == ["membership_confirmed"]
    assert await finding.step() == {"r1": True, "r2": True}


async def test_a_source_that_ends_or_breaks_is_started_again(
    store: RevisionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it found before stays; one that a revision has removed says nothing any more."""
    monkeypatch.setattr(membership.Backoff, "delay_s", lambda _: 0.0)
    made, runs, again = Finding(store), [], asyncio.Event()

    class Breaking(Silent):
        async def run(self, found, trouble) -> None:
            runs.append(len(runs))
            if len(runs) == 1:
                found(answer(1))
                raise LookupError("gone")
            if len(runs) > 2:
                self.found, self.trouble = found, trouble
                again.set()
                await asyncio.Event().wait()

    def make(origin, _tools) -> Silent:
        made.sources[origin.key] = Breaking() if origin.key == FILE else Silent()
        return made.sources[origin.key]

    made.membership._make = make
    with capture_logs() as logged:
        await made.start()
        await again.wait()
    assert await made.step() == {"r1": False}
    assert [e["error"] for e in logged if e["event"] == "source_failed"] == ["LookupError: gone"]
    stale = made.sources[FILE]
    await made.world.control.apply(OTHER, ChangeOptions())
    await made.step()
    stale.found(answer(1, 2))
    stale.trouble("no")
    assert set(await made.step()) <= {"r1"}
    assert {each.source for each in made.membership.sources()} == {"file /other"}
    await made.stop()


async def test_members_of_a_pool_that_ends_are_forgotten(finding: Finding) -> None:
    """And its sources stop."""
    finding.sources[FILE].found(answer(1))
    await finding.step()
    (watched, _) = finding.membership._pools["llm"].sources.values()
    await finding.world.control.apply(fleet(pool()), ChangeOptions())
    await finding.step()
    await asyncio.gather(watched.task, return_exceptions=True)
    assert watched.task.cancelled()
    assert finding.membership.pools() == []
    assert finding.stored[-1] == Members({})
