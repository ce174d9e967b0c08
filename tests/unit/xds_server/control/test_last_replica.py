"""The last usable replica of a variant is taken only by force."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import structlog

from support.controls import WAIT, weight
from support.fleets import endpoint, fleet, pool
from xds_server.control.operation import ChangeOptions
from xds_server.fleet.guards.last_replica import LastReplica
from xds_server.fleet.members.members import Member, Members
from xds_server.fleet.model.fleet import EndpointSpec

if TYPE_CHECKING:
    from support.controls import World

FORCE = ChangeOptions("ann", "because", force=True)
DRY = ChangeOptions(dry_run=True)
DRAINING = [endpoint(1), endpoint(2), endpoint(3, variant="canary", draining=True)]
EDITED = fleet(pool(default=True, endpoints=DRAINING)).model_dump_json()
"""The usual fleet, in which the only replica of the canary drains."""


async def test_a_drain_of_the_last_one_changes_nothing(world: World) -> None:
    """No revision, no publication; the second of two drains is the one that is refused."""
    await world.drain("r1")
    with pytest.raises(LastReplica, match="r1 drains, r2 drains"):
        await world.drain("r2", WAIT)
    assert world.control.revision == 2
    assert len(world.publisher.published) == 2


async def test_a_dry_run_is_refused_likewise(world: World) -> None:
    """It says what the change would meet."""
    with pytest.raises(LastReplica, match="variant canary of pool llm"):
        await world.drain("r3", DRY)


async def test_what_pickers_report_counts(world: World) -> None:
    """The healthy one of two is the last one."""
    world.left_alone["llm", "r2"] = "frozen 3 s more"
    with pytest.raises(LastReplica, match="r2 is frozen 3 s more"):
        await world.drain("r1", WAIT)
    await world.drain("r2", WAIT)


async def test_force_takes_it_and_the_history_says_so(world: World) -> None:
    """Who looks for the cause of an outage finds it there."""
    await world.drain("r3", FORCE)
    (newest, _) = await world.control.revisions(10)
    assert newest.changes == (
        "pool llm: endpoint r3 draining false -> true",
        (
            "forced: this leaves variant canary of pool llm (10% of its requests) without a usable"
            " replica: r3 drains (usable: 2 of stable)"
        ),
    )


async def test_a_weight_for_nobody_is_refused(world: World) -> None:
    """Weights are as dangerous as drains."""
    await world.weigh(WAIT, canary=0)
    await world.drain("r3", WAIT)
    with pytest.raises(LastReplica):
        await world.weigh(WAIT, canary=10)
    assert weight(world.control) == 0


async def test_an_edited_file_is_not_in_force_until_it_may_be(world: World) -> None:
    """The status shows why; a later look takes it, once its change takes nothing."""
    with pytest.raises(LastReplica):
        await world.control.apply_file(EDITED, "fleet.yaml")
    assert "variant canary of pool llm" in world.control.file_error
    await world.weigh(WAIT, canary=0)
    await world.control.apply_file(EDITED, "fleet.yaml")
    assert world.control.file_error == ""
    assert world.control.fleet.pools[0].endpoints[2].draining


async def test_a_start_with_such_a_file_keeps_what_is_stored(world: World) -> None:
    """The server starts; the fleet that was in force still is."""
    change = await world.control.start(EDITED, "fleet.yaml")
    assert (change.revision, world.control.fleet.pools[0].endpoints[2].draining) == (1, False)
    assert world.control.file_error


async def test_applies_and_rollbacks_are_guarded(world: World) -> None:
    """Each way to another fleet is."""
    with pytest.raises(LastReplica):
        await world.control.apply_text(EDITED, "fleet.yaml", ChangeOptions())
    await world.control.apply_text(EDITED, "fleet.yaml", FORCE)
    back = await world.control.rollback(1, FORCE)
    assert back.revision == 3
    with pytest.raises(LastReplica):
        await world.control.rollback(2, ChangeOptions())


async def test_members_that_go_are_an_alarm(world: World) -> None:
    """They are gone whatever is decided here."""
    one = pool(
        default=True, endpoints=[], endpoints_from=[{"file": "/f"}], variants=[{"name": "stable"}]
    )
    await world.control.apply(fleet(one), FORCE)
    found = Member(EndpointSpec(id="f1", http="10.0.0.1:8000"), "file /f", "f1", 1, 7)
    await world.control.publish_members(Members({"llm": (found,)}))
    drains = found.spec.model_copy(update={"draining": True})
    with structlog.testing.capture_logs() as logs:
        await world.control.publish_members(Members({"llm": (replace(found, spec=drains),)}))
    (alarm,) = [each for each in logs if each["event"] == "last_replica_gone"]
    assert (alarm["pool"], alarm["variant"], alarm["remains"]) == ("llm", "stable", "f1 drains")
