"""The health broadcaster publishes sick replicas when their set changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from xds_server.applications.keepers import health_broadcast
from xds_server.applications.keepers.health_broadcast import HealthBroadcaster
from xds_server.fleet.findings import Place
from xds_server.fleet.model.fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FLEET = Fleet.model_validate(
    {
        "pools": [
            {
                "name": "llm",
                "match": {"models": ["m"]},
                "health": {"share": True},
                "endpoints": [{"id": f"r{n}", "http": f"10.0.0.{n}:8000"} for n in range(3)],
            }
        ]
    }
)


class Peers:
    """Pickers' reports on one side, publications on the other."""

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self.published: list[Any] = []
        self.fleet = FLEET
        self.revision = 1
        self.incarnations: dict[str, int] = {}
        self.fails = False

    def findings(self) -> list[Any]:
        return self.reports

    async def publish_sick(self, sick: Any) -> None:
        if self.fails:
            raise RuntimeError("the store is full")
        self.published.append(sick)


@pytest.fixture
def peers() -> Peers:
    """Reports without findings."""
    return Peers()


@pytest.fixture
async def broadcaster(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HealthBroadcaster]:
    """A running broadcaster."""
    monkeypatch.setattr(health_broadcast, "EVERY_S", 0.0)
    made = HealthBroadcaster(peers, peers)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def notified(broadcaster: HealthBroadcaster) -> None:
    """Notify the broadcaster and let it finish."""
    broadcaster.notify()
    for _ in range(10):
        await asyncio.sleep(0)


async def test_only_what_differs_is_published(broadcaster: HealthBroadcaster, peers: Peers) -> None:
    """An unchanged report publishes nothing; the end of a finding does."""
    await notified(broadcaster)
    assert peers.published == []
    peers.reports = [{Place("llm", "r1", 1): ("frozen",)}]
    await notified(broadcaster)
    await notified(broadcaster)
    assert peers.published == [{"llm": {"r1": ("frozen",)}}]
    assert (broadcaster.published, [one.endpoint for one in broadcaster.sick()]) == (1, ["r1"])
    peers.reports = []
    await notified(broadcaster)
    assert peers.published[1:] == [{}]


async def test_before_the_first_fleet_nothing_is_published(
    broadcaster: HealthBroadcaster, peers: Peers
) -> None:
    """Pickers may report before the server has loaded the fleet."""
    peers.revision = 0
    peers.reports = [{Place("llm", "r1", 1): ("frozen",)}]
    await notified(broadcaster)
    assert (peers.published, broadcaster.sick()) == ([], ())


async def test_a_failed_publication_is_repeated_with_the_next_report(
    broadcaster: HealthBroadcaster, peers: Peers
) -> None:
    """A failure ends neither the broadcaster nor the finding."""
    peers.reports, peers.fails = [{Place("llm", "r1", 1): ("frozen",)}], True
    await notified(broadcaster)
    peers.fails = False
    await notified(broadcaster)
    assert peers.published == [{"llm": {"r1": ("frozen",)}}]
