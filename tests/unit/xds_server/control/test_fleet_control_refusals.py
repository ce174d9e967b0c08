"""A revision that clients refuse is led back, and what was meanwhile made outlives it or not."""

from __future__ import annotations

import asyncio

import pytest

from support.controls import WAIT, World, weight
from support.fleets import fleet, pool
from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE, PICKER_CLUSTER, ROUTE_TYPE
from xds_server.control.operation import ChangeOptions


def reachable(world: World) -> set[str]:
    """Return the pools that clients may still use."""
    have = world.control._rollout.reached()
    assert have is not None
    return {found.name for found in have.view.fleet.pools}


async def test_what_is_superseded_may_still_be_used(world: World) -> None:
    """Until a publication runs to its end, earlier pools stay reachable."""
    world.publisher.at_once = False
    await world.quiet()
    await world.control.apply(fleet(pool("b")), ChangeOptions())
    await world.control.apply(fleet(pool("c")), ChangeOptions())
    await world.quiet()
    assert reachable(world) == {"llm", "b", "c"}
    world.publisher.published[-1].end()
    await world.quiet()
    assert reachable(world) == {"c"}


async def test_a_refused_revision_is_led_back(world: World) -> None:
    """Its words are in history and status, and what is in force is what clients have."""
    world.publisher.at_once = False
    task = asyncio.create_task(world.control.set_weights("llm", {"canary": 30}, WAIT))
    await world.publisher.begun()
    world.publisher.published[-1].end("abandoned", "add")
    change = await task
    assert (change.revision, change.outcome.state) == (2, "abandoned")
    world.publisher.published[-1].end()
    await world.quiet()
    assert (world.control.revision, weight(world.control)) == (3, 10)
    back, refused, _ = await world.control.revisions(10)
    assert refused.outcome == "refused by envoy-1 (CDS: bad)"
    assert (back.author, back.reason) == (
        "tidegate",
        "back to revision 1: revision 2 was refused by envoy-1 (CDS: bad)",
    )
    assert back.changes == ("pool llm: variant canary weight 30 -> 10",)
    assert world.control.refusal.startswith("revision 2 was refused by envoy-1 (CDS: bad)")
    await world.control.set_weights("llm", {"canary": 40}, ChangeOptions())
    world.publisher.published[-1].end()
    await world.quiet()
    assert world.control.refusal == ""


async def test_the_way_back_starts_from_what_clients_have(world: World) -> None:
    """Before the switch that is the fleet before; a refused cluster is not sent again."""
    world.publisher.at_once = False
    await world.control.apply(fleet(pool("b")), ChangeOptions())
    world.publisher.published[-1].end("abandoned", "add")
    assert reachable(world) == {"llm"}
    await world.quiet()
    assert reachable(world) == {"llm"}


async def test_a_refused_switch_is_led_back_in_stages(world: World) -> None:
    """Its clusters stay until the routes are back, and the refused routes are sent to nobody."""
    world.publisher.at_once = False
    await world.control.apply(fleet(pool("b")), ChangeOptions())
    halted = world.publisher.published[-1]
    halted.end("abandoned", "switch", "RDS")
    assert reachable(world) == {"llm", "b"}
    await world.quiet()
    assert len(world.publisher.published) == 3
    stages = {stage.label: stage.snapshot for stage in world.publisher.published[-1].stages}
    reached = {stage.label: stage.snapshot for stage in halted.stages}["switch"]
    assert stages["add"].version(ROUTE_TYPE) == reached.version(ROUTE_TYPE)
    assert stages["add"].version(CLUSTER_TYPE) == reached.version(CLUSTER_TYPE)
    assert "b/stable/http" in stages["switch"].resources(CLUSTER_TYPE)
    assert set(stages["remove"].resources(CLUSTER_TYPE)) == {
        "llm/stable/http",
        "llm/stable/grpc",
        "llm/canary/http",
        "llm/canary/grpc",
        PICKER_CLUSTER,
    }


async def test_a_drain_outlives_a_refusal(world: World) -> None:
    """It may be all that keeps requests from a broken replica."""
    world.publisher.at_once = False
    await world.control.set_draining("r1", True, ChangeOptions())
    await world.control.set_weights("llm", {"canary": 30}, ChangeOptions())
    world.publisher.published[-1].end("abandoned", "add")
    await world.quiet()
    assert weight(world.control) == 10
    assert world.control.fleet.pools[0].endpoints[0].draining


async def test_what_was_made_on_a_refused_revision_goes_the_same_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal came while it was being stored."""
    world.publisher.at_once = False
    await world.control.set_weights("llm", {"canary": 30}, ChangeOptions())
    append = world.store.append

    def refused_meanwhile(state) -> None:
        if state.revision.number == 3:
            world.publisher.published[-1].end("abandoned", "add")
        append(state)

    monkeypatch.setattr(world.store, "append", refused_meanwhile)
    change = await world.control.set_weights("llm", {"stable": 70}, WAIT)
    await world.quiet()
    assert (change.revision, change.outcome.state) == (3, "abandoned")
    assert (world.control.revision, weight(world.control)) == (4, 10)
    outcomes = [revision.outcome for revision in await world.control.revisions(3)]
    assert outcomes == ["", *["refused by envoy-1 (CDS: bad)"] * 2]


async def test_a_refused_file_may_be_corrected(world: World) -> None:
    """What the refused text said does not count as what operators changed at run time."""
    world.publisher.at_once = False
    edited = fleet(pool(default=True, routing={"fallbacks": 1}))
    heavier = edited.model_dump_json().replace('"weight":10', '"weight":30')
    await world.control.apply_file(heavier, "fleet.yaml")
    world.publisher.published[-1].end("abandoned", "add")
    await world.quiet()
    assert "revision 2 was refused" in world.control.file_error
    corrected = heavier.replace('"fallbacks":1', '"fallbacks":2')
    await world.control.apply_file(corrected, "fleet.yaml")
    assert weight(world.control) == 30
    assert world.control.file_error == ""


async def test_what_became_of_a_revision_is_kept(world: World) -> None:
    """With how many took it, over which channels, and how long that was."""
    await world.control.set_weights("llm", {"canary": 30}, WAIT)
    await world.quiet()
    (newest, _) = await world.control.revisions(10)
    assert newest.outcome == "acknowledged by 2 of 2 clients over RDS in 500 ms"


async def test_others_may_keep_what_one_refused(world: World) -> None:
    """The fleet says so, and the publisher is told."""
    await world.control.apply(fleet(on_reject="keep"), ChangeOptions())
    assert [p.on_reject for p in world.publisher.published] == ["rollback", "keep"]


async def test_what_pickers_found_is_published_without_a_revision(world: World) -> None:
    """It survives the next change, and ends when it is no longer told."""
    control, publisher = world.control, world.publisher
    await control.tell({"llm": {"r1": ("ejected",)}})
    assert (control.revision, len(publisher.published)) == (1, 2)
    before = publisher.published[-1].stages[-1].snapshot
    await control.set_weights("llm", {"canary": 20}, WAIT)
    there = publisher.published[-1].stages[-1].snapshot
    assert there.resources(ENDPOINT_TYPE) == before.resources(ENDPOINT_TYPE)
    await control.tell({})
    there = publisher.published[-1].stages[-1].snapshot
    assert there.resources(ENDPOINT_TYPE) != before.resources(ENDPOINT_TYPE)
    await world.quiet()
