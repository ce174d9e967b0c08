"""Two operators: a change that does not know of another one is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.controls import TEXT, WAIT, weight
from xds_server.control.operation import ChangeOptions
from xds_server.fleet.change import set_draining
from xds_server.fleet.guards.others import ChangedMeanwhile, UndoesOthers
from xds_server.fleet.view import CanaryMark

if TYPE_CHECKING:
    from support.controls import World
    from xds_server.fleet.model.fleet import Fleet


def drained(fleet: Fleet) -> Fleet:
    """Return the fleet with one replica draining."""
    return set_draining(fleet, "r1", True)


def bob(based_on: int = 0, *, force: bool = False) -> ChangeOptions:
    """Return the options of a second operator."""
    return ChangeOptions("bob", "", based_on=based_on, force=force)


def drains(world: World) -> bool:
    """Return whether the replica drains."""
    return world.control.written.pools[0].endpoints[0].draining


async def test_a_change_that_is_based_on_an_older_revision_changes_nothing(world: World) -> None:
    """It names who was faster; based on the newest one it is made."""
    await world.control.change(drained, WAIT)
    with pytest.raises(ChangedMeanwhile, match="2 by ann: pool llm: endpoint r1 draining"):
        await world.weigh(bob(1), canary=20)
    assert (world.control.revision, weight(world.control)) == (2, 10)
    await world.weigh(bob(2), canary=20)
    assert weight(world.control) == 20


async def test_force_makes_it_and_the_history_says_so(world: World) -> None:
    """Who looks for the cause finds it there."""
    await world.control.change(drained, WAIT)
    change = await world.weigh(bob(1, force=True), canary=20)
    assert change.changes[-1] == "forced: it is based on revision 1, not 2"


async def test_a_fleet_that_knows_of_no_drain_is_refused(world: World) -> None:
    """A file from yesterday does not end the drain of a replica that is about to be stopped."""
    await world.control.change(drained, WAIT)
    with pytest.raises(UndoesOthers, match=r"drain of r1 \(pool 'llm'\).*--based-on 2"):
        await world.control.apply_text(TEXT, "fleet", bob())
    assert drains(world)


@pytest.mark.parametrize("options", [bob(2), bob(force=True)])
async def test_who_has_seen_the_drain_may_end_it(world: World, options: ChangeOptions) -> None:
    """By the revision that has it, or by force."""
    await world.control.change(drained, WAIT)
    change = await world.control.apply_text(TEXT, "fleet", options)
    assert not drains(world)
    assert ("forced: this undoes the drain of r1 (pool 'llm')" in change.changes) == options.force


async def test_a_fleet_does_not_move_a_canary_that_runs(world: World) -> None:
    """Weights of a pool without one are the author's."""
    await world.weigh(WAIT, canary=20)
    world.control.mark_canaries({"llm": CanaryMark("c1", "canary", "stable", (20,), 110)})
    with pytest.raises(UndoesOthers, match="running canary"):
        await world.control.apply_text(TEXT, "fleet", bob())
    world.control.mark_canaries({})
    await world.control.apply_text(TEXT, "fleet", bob())
    assert weight(world.control) == 10


async def test_the_fleet_file_keeps_drains_and_is_not_refused(world: World) -> None:
    """Its edits are merged."""
    await world.control.change(drained, WAIT)
    await world.control.apply_file(TEXT + " ", "fleet.yaml")
    assert (drains(world), world.control.file_error) == (True, "")


async def test_a_rollback_keeps_a_later_drain_and_says_so(world: World) -> None:
    """It takes the weight back, not the drain of another operator."""
    await world.weigh(WAIT, canary=20)
    await world.control.change(drained, WAIT)
    change = await world.control.rollback(1, bob())
    assert (weight(world.control), drains(world)) == (10, True)
    assert change.kept == ("r1 of pool 'llm' drains on; `tidegate undrain llm/r1` ends that",)


async def test_a_forced_rollback_takes_back_drains_too(world: World) -> None:
    """The fleet is then that of the revision."""
    await world.control.change(drained, WAIT)
    change = await world.control.rollback(1, bob(force=True))
    assert (drains(world), change.kept) == (False, ())
