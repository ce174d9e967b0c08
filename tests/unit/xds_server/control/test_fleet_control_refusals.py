"""The fallback from a revision that clients reject, and its effect on changes made meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from support.controls import WAIT, World, weight
from support.fleets import endpoint, fleet, pool
from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    LOG_CLUSTER_PREFIX,
    PICKER_CLUSTER,
    ROUTE_TYPE,
)
from xds_server.control.operation import ChangeOptions


def reachable(world: World) -> set[str]:
    """Return the pools that clients may still use."""
    have = world.control._rollout.acknowledged()
    assert have is not None
    return {found.name for found in have.view.fleet.pools}


async def test_a_superseded_state_may_still_be_used(world: World) -> None:
    """Earlier pools stay reachable until a publication is completed."""
    world.publisher.at_once = False
    await world.quiet()
    await world.control.apply(fleet(pool("b")), ChangeOptions())
    await world.control.apply(fleet(pool("c")), ChangeOptions())
    await world.quiet()
    assert reachable(world) == {"llm", "b", "c"}
    world.publisher.published[-1].end()
    await world.quiet()
    assert reachable(world) == {"c"}


async def test_a_rejected_revision_falls_back(world: World) -> None:
    """History and status hold the error message; the state in force is that of the clients."""
    world.publisher.at_once = False
    task = asyncio.create_task(world.weigh(WAIT, canary=30))
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
    await world.weigh(canary=40)
    world.publisher.published[-1].end()
    await world.quiet()
    assert world.control.refusal == ""


async def test_a_file_as_it_was_ends_a_refusal_of_its_edit(world: World) -> None:
    """What was refused is no longer wanted, and status has no reason to tell of it."""
    before = fleet().model_dump_json()
    await world.control.apply_file(before, "fleet.yaml")
    world.publisher.published[-1].end()
    await world.quiet()
    world.publisher.at_once = False
    edited = fleet(pool("b")).model_dump_json()
    await world.control.apply_file(edited, "fleet.yaml")
    world.publisher.published[-1].end("abandoned", "add")
    await world.quiet()
    assert "was refused" in world.control.refusal
    assert world.control.file_error == world.control.refusal
    world.publisher.published[-1].end()
    await world.control.apply_file(before, "fleet.yaml")
    assert (world.control.refusal, world.control.file_error) == ("", "")


async def test_the_fallback_starts_from_the_clients_state(world: World) -> None:
    """Before the switch that is the previous fleet; a rejected cluster is not sent again."""
    world.publisher.at_once = False
    await world.control.apply(fleet(pool("b")), ChangeOptions())
    world.publisher.published[-1].end("abandoned", "add")
    assert reachable(world) == {"llm"}
    await world.quiet()
    assert reachable(world) == {"llm"}


async def test_a_rejected_switch_falls_back_in_stages(world: World) -> None:
    """Its clusters stay until the routes are restored; no client gets the rejected routes."""
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
    left = set(stages["remove"].resources(CLUSTER_TYPE))
    assert {name for name in left if not name.startswith(LOG_CLUSTER_PREFIX)} == {
        "llm/stable/http",
        "llm/stable/grpc",
        "llm/canary/http",
        "llm/canary/grpc",
        PICKER_CLUSTER,
    }


async def test_a_drain_survives_a_fallback(world: World) -> None:
    """A drain may be the only protection of requests from a broken replica."""
    world.publisher.at_once = False
    await world.drain("r1")
    await world.weigh(canary=30)
    world.publisher.published[-1].end("abandoned", "add")
    await world.quiet()
    assert weight(world.control) == 10
    assert world.control.fleet.pools[0].endpoints[0].draining


async def test_a_change_based_on_a_rejected_revision_falls_back_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The NACK arrives while the change is being stored."""
    world.publisher.at_once = False
    await world.weigh(canary=30)
    append = world.store.append

    def refused_meanwhile(state) -> None:
        if state.revision.number == 3:
            world.publisher.published[-1].end("abandoned", "add")
        append(state)

    monkeypatch.setattr(world.store, "append", refused_meanwhile)
    change = await world.weigh(WAIT, stable=70)
    await world.quiet()
    assert (change.revision, change.outcome.state) == (3, "abandoned")
    assert (world.control.revision, weight(world.control)) == (4, 10)
    outcomes = [revision.outcome for revision in await world.control.revisions(3)]
    assert outcomes == ["", *["refused by envoy-1 (CDS: bad)"] * 2]


async def test_a_rejected_file_may_be_corrected(world: World) -> None:
    """Values of the rejected file do not count as changes by operators at run time."""
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


async def test_publishing_a_revision_again_keeps_its_outcome(world: World) -> None:
    """Other replicas are found, or clients are fewer: that says nothing new of the revision."""
    await world.weigh(WAIT, canary=30)
    await world.quiet()
    for _ in range(2):
        newest, _ = await world.control.revisions(10)
        assert newest.outcome == "acknowledged by 2 of 2 clients over RDS in 500 ms"
        await world.control.publish_sick({})
        world.publisher.published[-1].end()
        await world.quiet()


async def test_other_clients_may_keep_what_one_rejected(world: World) -> None:
    """The setting of the fleet is passed to the publisher."""
    await world.control.apply(fleet(on_reject="keep"), ChangeOptions())
    assert [p.on_reject for p in world.publisher.published] == ["quorum", "keep"]


async def test_sick_replicas_are_published_without_a_revision(world: World) -> None:
    """They survive the next change, and end with an empty set."""
    control, publisher = world.control, world.publisher
    await control.publish_sick({"llm": {"r1": ("ejected",)}})
    assert (control.revision, len(publisher.published)) == (1, 2)
    before = publisher.published[-1].stages[-1].snapshot
    await world.weigh(WAIT, canary=20)
    there = publisher.published[-1].stages[-1].snapshot
    assert there.resources(ENDPOINT_TYPE) == before.resources(ENDPOINT_TYPE)
    await control.publish_sick({})
    there = publisher.published[-1].stages[-1].snapshot
    assert there.resources(ENDPOINT_TYPE) != before.resources(ENDPOINT_TYPE)
    await world.quiet()


async def test_a_revision_that_is_published_again_is_not_superseded_by_itself(world: World) -> None:
    """Its outcome is that of the newest publication; the channels are those of all."""
    world.publisher.at_once = False
    await world.weigh(canary=30)
    for channel in ("RTDS", "EDS"):
        world.publisher.published[-1].channels = (channel,)
        await world.control.publish_sick({})
        await world.quiet()
        (newest, _) = await world.control.revisions(10)
        assert (newest.number, newest.outcome) == (2, "")
    world.publisher.published[-1].end()
    await world.quiet()
    (newest, _) = await world.control.revisions(10)
    assert newest.outcome == "acknowledged by 2 of 2 clients over RTDS, EDS, RDS in 500 ms"


@pytest.mark.parametrize(("refused", "stays"), [("CDS", True), ("EDS", False)])
async def test_new_replicas_survive_a_fallback_unless_they_were_refused(
    world: World, refused: str, stays: bool
) -> None:
    """What clients refuse is another setting, or the endpoints themselves."""
    world.publisher.at_once = False
    replicas = [*pool()["endpoints"], endpoint(4)]
    grown = pool(default=True, endpoints=replicas, routing={"fallbacks": 1})
    await world.control.apply(fleet(grown), ChangeOptions())
    world.publisher.published[-1].end("abandoned", "add", refused)
    await world.quiet()
    assert ("r4" in {each.id for each in world.control.fleet.pools[0].endpoints}) == stays


async def test_what_is_observed_does_not_supersede_a_fallback(world: World) -> None:
    """It leads clients back first."""
    world.publisher.at_once = False
    await world.weigh(canary=30)
    refused = world.publisher.published[-1]
    refused.end("abandoned", "add")
    assert not await world.control.publish_placed(())
    assert world.publisher.published[-1].outcome.state == "waiting"
    assert world.control.revision == 3
    await world.quiet()
    assert len(world.publisher.published) == 3
