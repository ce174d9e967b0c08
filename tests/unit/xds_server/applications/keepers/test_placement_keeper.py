"""Placement is told to Envoys when it has changed, and never before an operator's change."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from support.controls import WAIT
from support.controls import World as ControlWorld
from support.fleets import endpoint, fleet, pool
from tidegate_api.names import ENDPOINT_TYPE, POOL_TYPE
from xds_server.applications.keepers.placement_keeper import SOMETIMES_S, PlacementKeeper
from xds_server.applications.traffic.placements import (
    LEFT_S,
    PlacedState,
    PlacementBook,
    ReplicaModels,
)
from xds_server.fleet.change import set_draining
from xds_server.fleet.store import RevisionStore

FLEET = fleet(
    pool(
        match={"models": ["a", "b"]},
        variants=[{"name": "stable", "weight": 1}],
        endpoints=[endpoint(1), endpoint(2)],
    )
)
READY = PlacedState("READY", "", 1.0)
ON_R1 = (("llm", (("r1", ("a",)),)),)
ON_R2 = (("llm", (("r2", ("a",)),)),)


def has(*models: str) -> ReplicaModels:
    """Return what a replica has."""
    return ReplicaModels(0.0, whole=True, models={(name, "1"): READY for name in models})


class World:
    """A keeper, what it is told, and what it publishes."""

    def __init__(self) -> None:
        self.now = 100.0
        self.book = PlacementBook(lambda: self.now)
        self.settled = True
        self.fails = False
        self.told: list[Any] = []
        control = SimpleNamespace(revision=1, fleet=FLEET, publish_placed=self._publish)
        self.keeper = PlacementKeeper(
            control,  # type: ignore[arg-type]  # enough of it
            self.book,
            lambda: self.now,
        )

    async def _publish(self, placed: Any) -> bool:
        if self.fails:
            raise RuntimeError("a resource that cannot be built")
        if self.settled:
            self.told.append(placed)
        return self.settled

    async def look(self, after: float = 2.0) -> list[Any]:
        """Look after some seconds; return what has been published."""
        self.now += after
        await self.keeper.look()
        return self.told


@pytest.fixture
def world() -> World:
    """Return a world in which a picker has found one model on one of two replicas."""
    made = World()
    made.book.take("p1", {"r1": has("a"), "r2": has()})
    return made


async def test_a_change_of_placement_is_told_once(world: World) -> None:
    """Equal reports, and reports of what Envoys need not know, publish nothing."""
    assert await world.look() == [ON_R1]
    world.book.take("p1", {"r1": has("a"), "r2": has()})
    assert await world.look() == [ON_R1]
    world.book.take("p1", {"r1": has(), "r2": has("a")})
    assert await world.look() == [ON_R1, ON_R2]
    world.book.take("p1", {"r1": has("a"), "r2": has("a")})
    assert await world.look() == [ON_R1, ON_R2, ()]


async def test_what_a_picker_found_counts_after_it(world: World) -> None:
    """That is when Envoys need it; in the end it is too old to be believed."""
    await world.look()
    world.book.gone("p1")
    assert await world.look() == [ON_R1]
    assert await world.look(LEFT_S - 10.0) == [ON_R1]
    assert await world.look(SOMETIMES_S) == [ON_R1, ()]


async def test_a_publication_that_runs_is_waited_for(world: World) -> None:
    """An operator's change would otherwise begin anew with each change of placement."""
    world.settled = False
    assert await world.look() == []
    world.settled = True
    assert await world.look() == [ON_R1]


async def test_what_could_not_be_told_is_tried_again(world: World) -> None:
    """Nothing is taken for told that was not."""
    world.fails = True
    with pytest.raises(RuntimeError):
        await world.look()
    world.fails = False
    assert await world.look() == [ON_R1]


async def test_envoys_get_the_placement_and_keep_it_over_changes() -> None:
    """It makes no revision, pickers' resources stay the same, and a weight takes nothing back."""
    with closing(RevisionStore(None)) as store:
        world = ControlWorld(store)
        control, publisher = world.control, world.publisher
        await control.start(FLEET.model_dump_json(), "fleet.yaml")

        def endpoints() -> Any:
            held = publisher.in_force("envoy")
            assert held is not None
            return held.resources(ENDPOINT_TYPE)["llm/stable/http"].version

        def pools() -> Any:
            held = publisher.in_force("picker")
            assert held is not None
            return held.resources(POOL_TYPE)["llm"].version

        bare, known = endpoints(), pools()
        await control.publish_placed(ON_R1)
        placed = endpoints()
        assert placed != bare
        assert pools() == known
        await control.change(lambda fleet: set_draining(fleet, "r2", True), WAIT)
        await control.change(lambda fleet: set_draining(fleet, "r2", False), WAIT)
        assert endpoints() == placed
        await control.publish_placed(())
        assert endpoints() == bare
        assert control.revision == 3
        await control.stop()
