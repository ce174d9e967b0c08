"""Who is sick is told to all, once it differs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from xds_server.control import health_broadcast as telling
from xds_server.control.health_broadcast import HealthBroadcaster
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

    async def tell(self, told: Any) -> None:
        if self.fails:
            raise RuntimeError("the store is full")
        self.published.append(told)


@pytest.fixture
def peers() -> Peers:
    """Nobody is sick yet."""
    return Peers()


@pytest.fixture
async def crier(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HealthBroadcaster]:
    """A crier that runs."""
    monkeypatch.setattr(telling, "EVERY_S", 0.0)
    made = HealthBroadcaster(peers, peers)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def heard(crier: HealthBroadcaster) -> None:
    """Let it hear, and come to rest."""
    crier.hear()
    for _ in range(10):
        await asyncio.sleep(0)


async def test_only_what_differs_is_published(crier: HealthBroadcaster, peers: Peers) -> None:
    """A report that says the same again costs no push; the end of the finding is one."""
    await heard(crier)
    assert peers.published == []
    peers.reports = [{Place("llm", "r1", 1): ("frozen",)}]
    await heard(crier)
    await heard(crier)
    assert peers.published == [{"llm": {"r1": ("frozen",)}}]
    assert (crier.told, [one.endpoint for one in crier.sick()]) == (1, ["r1"])
    peers.reports = []
    await heard(crier)
    assert peers.published[1:] == [{}]


async def test_before_the_first_fleet_nothing_is_told(
    crier: HealthBroadcaster, peers: Peers
) -> None:
    """Pickers of an earlier life may report before the fleet is loaded."""
    peers.revision = 0
    peers.reports = [{Place("llm", "r1", 1): ("frozen",)}]
    await heard(crier)
    assert (peers.published, crier.sick()) == ([], ())


async def test_what_could_not_be_told_is_told_with_the_next_report(
    crier: HealthBroadcaster, peers: Peers
) -> None:
    """A failure ends neither the crier nor the finding."""
    peers.reports, peers.fails = [{Place("llm", "r1", 1): ("frozen",)}], True
    await heard(crier)
    peers.fails = False
    await heard(crier)
    assert peers.published == [{"llm": {"r1": ("frozen",)}}]
