"""How soon what is found is published, in virtual time, and what is said of a pool without any."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from structlog.testing import capture_logs

from support.admissions import listed
from support.fleets import fleet, pool
from support.time import virtual_time
from xds_server.applications.discovery.membership import Clocks, Membership
from xds_server.applications.discovery.table import SourceTools
from xds_server.fleet.members.members import Members

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.applications.discovery.readiness import Question
    from xds_server.applications.discovery.values import Observation

MOST_S = 2.0
"""Longest time from a replica's readiness to its publication."""


class Told:
    """A source, a fleet and the replicas' readiness in one."""

    def __init__(self) -> None:
        spec = pool(variants=[{"name": "stable"}], endpoints=[], endpoints_from=[{"file": "/f"}])
        self.written = fleet(spec)
        self.ready: set[str] = set()
        self.published: set[str] = set()
        """Ids of the replicas that were published."""
        self.changed = asyncio.Event()
        self.found: Callable[[Observation], None] = lambda _: None

    async def run(self, found: Callable[[Observation], None], _: Callable[[str], None]) -> None:
        """Be the source."""
        self.found = found
        self.changed.set()
        await asyncio.Event().wait()

    async def publish_members(self, members: Members) -> None:
        """Note which."""
        self.published |= {each.spec.id for each in members.pools.get("llm", ())}
        self.changed.set()

    async def is_ready(self, question: Question) -> bool:
        """Answer a question."""
        return question.http in self.ready

    async def store(self, members: Members) -> None:
        """Store nothing."""

    async def until(self, true: Callable[[], Any]) -> None:
        """Wait for publications until ``true`` returns true."""
        while not true():
            self.changed.clear()
            await self.changed.wait()


@contextlib.asynccontextmanager
async def running() -> Any:
    """Run a membership, without waiting for time."""
    told, loop = Told(), asyncio.get_running_loop()
    with virtual_time():
        membership = Membership(
            told,
            SourceTools(None, lambda: 0.5),  # type: ignore[arg-type] # no source asks DNS
            Clocks(loop.time, lambda: int(loop.time() * 1000)),
            lambda: None,
            told.is_ready,
            told.store,
            lambda *_: told,
        )
        task = asyncio.create_task(membership.run(Members()))
        await told.changed.wait()
        yield told, membership
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_replica_is_published_soon_after_it_is_ready() -> None:
    """Whenever in the second between two questions that is."""
    async with running() as (told, _):
        told.found(listed(1))
        await told.until(lambda: "r1" in told.published)
        for number in range(2, 12):
            told.found(listed(*range(1, number + 1)))
            await asyncio.sleep(3 + number / 10)
            name = f"r{number}"
            assert name not in told.published, "its model is not ready"
            told.ready.add(f"10.0.0.{number + 1}:8000")
            async with asyncio.timeout(MOST_S):  # virtual seconds
                await told.until(lambda name=name: name in told.published)


async def test_a_pool_that_nothing_serves_says_so_once() -> None:
    """In the log, with the reason, and where operators look; and that it is over."""
    async with running() as (told, membership):
        with capture_logs() as logged:
            told.found(listed(1, 2, serving=False))
            await asyncio.sleep(5)
            (state,) = membership.pools()
            assert state.nothing == "2 replicas are listed, and none of them as able to serve"
            told.found(listed(1, 2))
            await told.until(lambda: "r2" in told.published)
        events = [each for each in logged if each["event"].startswith("pool_with")]
        assert [each["event"] for each in events] == ["pool_without_replicas", "pool_with_replicas"]
        assert events[0]["reason"] == state.nothing
        assert membership.pools()[0].nothing == ""
