"""Which changes come to Envoys in waves, and which do not wait for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing

import pytest

from support.controls import World
from support.fleets import fleet, pool
from tidegate_api.names import ENDPOINT_TYPE
from xds_server.control.operation import ChangeOptions
from xds_server.fleet.change import set_drop_overload
from xds_server.fleet.store import RevisionStore

ANY = ChangeOptions()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Return a world whose fleet asks for waves and a quorum."""
    text = fleet(waves=True, on_reject="quorum", reject_quorum=0.25).model_dump_json()
    with closing(RevisionStore(None)) as store:
        made = World(store)
        await made.control.start(text, "fleet.yaml")
        await made.quiet()
        yield made
        await made.control.stop()


def waves(world: World) -> list[bool]:
    """Return which publications came in waves."""
    return [publication.waves for publication in world.publisher.published]


async def test_a_change_comes_in_waves_if_the_fleet_says_so(world: World) -> None:
    """The first state ever does not; nor is anything changed for other fleets."""
    await world.weigh(canary=30)
    await world.quiet()
    await world.control.apply(fleet(), ANY)
    assert waves(world) == [False, True, False]


async def test_the_quorum_is_passed_on(world: World) -> None:
    """The publisher counts."""
    published = world.publisher.published[0]
    assert (published.on_reject, published.quorum) == ("quorum", 0.25)


async def test_drains_shed_load_and_sick_replicas_do_not_wait(world: World) -> None:
    """They protect requests, and are no change that could be wrong for one Envoy."""
    await world.drain("r1")
    await world.control.publish_sick({"llm": {"r2": ("ejected",)}})
    await world.control.change(lambda fleet: set_drop_overload(fleet, "llm", 50), ANY)
    assert not any(waves(world))


async def test_a_drain_during_waves_takes_nothing_past_them(world: World) -> None:
    """The weights that are being tried stay with the Envoys that try them."""
    world.publisher.at_once = False
    await world.weigh(canary=30)
    await world.drain("r1")
    assert waves(world) == [False, True, True]


async def test_load_is_shed_at_once_during_waves(world: World) -> None:
    """Each Envoy sheds in what it has; the rest of the change follows in waves."""
    world.publisher.at_once = False
    await world.weigh(canary=30)
    await world.control.change(lambda fleet: set_drop_overload(fleet, "llm", 50), ANY)
    stage = world.publisher.published[-1].stages[0]
    assert (stage.label, stage.audience, stage.urgent) == ("urgent", "envoy", True)
    assert stage.edit is not None
    held = world.publisher.published[0].stages[0].snapshot
    shed, target = stage.edit(held), world.publisher.published[-1].stages[-1].snapshot
    name = "llm/stable/http"
    assert shed.resources(ENDPOINT_TYPE)[name] == target.resources(ENDPOINT_TYPE)[name]
    assert shed.resources(ENDPOINT_TYPE).keys() == held.resources(ENDPOINT_TYPE).keys()
    assert {t for t in held.type_urls if shed.version(t) != held.version(t)} == {ENDPOINT_TYPE}


async def test_shed_load_survives_the_fallback_from_another_change(world: World) -> None:
    """It may be all that keeps a pool alive."""
    world.publisher.at_once = False
    await world.weigh(canary=30)
    await world.control.change(lambda fleet: set_drop_overload(fleet, "llm", 50), ANY)
    world.publisher.published[-1].end("abandoned", "switch", "RDS")
    await world.quiet()
    (llm,) = world.control.fleet.pools
    assert (llm.drop_overload, llm.variants[1].weight) == (50, 10)


async def test_the_way_back_does_not_come_in_waves(world: World) -> None:
    """All Envoys have accepted that state before."""
    world.publisher.at_once = False
    await world.weigh(canary=30)
    world.publisher.published[-1].end("abandoned", "switch", "RDS")
    await world.quiet()
    await world.weigh(canary=40)
    assert waves(world) == [False, True, False, True]


async def test_after_a_step_back_the_envoys_have_the_old_routes(world: World) -> None:
    """The next change starts from what they have."""
    world.publisher.at_once = False
    await world.control.apply(fleet(pool("b"), waves=True), ANY)
    published = world.publisher.published[-1]
    published.end("abandoned", "switch", "RDS")
    published.outcome.in_waves = True
    reached = world.control._rollout.acknowledged()
    assert [found.name for found in reached.front.pools] == ["llm"]
    assert {found.name for found in reached.view.fleet.pools} == {"llm", "b"}
    await world.quiet()
