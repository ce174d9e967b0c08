"""Standbys are published as draining until they come in, by pickers' reports or by operators."""

from __future__ import annotations

from contextlib import closing

import pytest

from support.controls import WAIT, World
from support.fleets import endpoint, fleet, pool
from xds_server.applications.keepers.standby_keeper import StandbyKeeper, dump, load
from xds_server.applications.traffic.replicas import Condition, State
from xds_server.control.operation import ChangeOptions
from xds_server.fleet.change import set_draining, set_standby
from xds_server.fleet.guards.last_replica import LastReplica
from xds_server.fleet.store import RevisionStore

EJECTED = State((Condition("ejected", "5 errors"),), pickers=1)
FINE = State(pickers=1)
FLEET = fleet(
    pool(
        default=True,
        variants=[{"name": "stable"}],
        standby={"hold": 10},
        endpoints=[endpoint(1), endpoint(2), endpoint(3, standby=True)],
    )
).model_dump_json()


class Kept:
    """A control, its keeper, and what pickers report."""

    def __init__(self, store: RevisionStore) -> None:
        self.world = World(store)
        self.control = self.world.control
        self.states = {("llm", f"r{n}"): FINE for n in (1, 2, 3)}
        self.stored: list[str] = []
        self.unix_ms = 5000
        self.keeper = StandbyKeeper(
            self.control,
            lambda: self.states,
            self._store,
            lambda: self.world.now,
            lambda: self.unix_ms,
        )

    async def _store(self, text: str) -> None:
        self.stored.append(text)

    def drains(self) -> list[str]:
        """Return the replicas that clients get as draining."""
        return [each.id for each in self.control.fleet.pools[0].endpoints if each.draining]

    async def look(self, after: float = 0.0) -> list[str]:
        """Look after some seconds; return the replicas that drain."""
        self.world.now += after
        await self.keeper.look()
        return self.drains()


@pytest.fixture
async def kept():
    """Return the parts with two replicas and a standby."""
    with closing(RevisionStore(None)) as store:
        made = Kept(store)
        await made.control.start(FLEET, "fleet.yaml")
        yield made
        await made.control.stop()


async def test_a_standby_takes_no_requests(kept: Kept) -> None:
    """Clients get it as draining; the revision says what it is."""
    assert await kept.look() == ["r3"]
    assert kept.stored == []
    written = kept.control.written.pools[0].endpoints[2]
    assert (written.standby, written.draining) == (True, False)


async def test_it_comes_in_with_a_ramp_and_goes_back(kept: Kept) -> None:
    """No revision is made; its time of joining is that of its coming."""
    kept.states["llm", "r1"] = EJECTED
    assert await kept.look() == ["r3"], "half of the others is enough"
    kept.states["llm", "r2"] = EJECTED
    assert await kept.look() == []
    state = kept.control._state
    assert state is not None
    assert state.all_incarnations["r3"] == (1, 5000)
    assert (kept.stored, kept.control.revision) == (['{"llm": {"r3": 5000}}'], 1)
    kept.states["llm", "r1"] = kept.states["llm", "r2"] = FINE
    assert await kept.look() == []
    assert await kept.look(after=10) == ["r3"]
    assert kept.world.publisher.published[-1].stages[-1].wait_for_drained == {"r3"}
    assert kept.stored[-1] == "{}"


async def test_a_drain_of_others_brings_it_in(kept: Kept) -> None:
    """They are as little use as sick ones."""
    await kept.control.change(lambda fleet: set_draining(fleet, "r1", True), WAIT)
    kept.states["llm", "r2"] = EJECTED
    assert await kept.look() == ["r1"]


async def test_it_is_not_the_one_that_remains(kept: Kept) -> None:
    """Promote it first; the message says so."""
    await kept.control.change(lambda fleet: set_draining(fleet, "r1", True), WAIT)
    with pytest.raises(LastReplica, match="r3 is a standby"):
        await kept.control.change(lambda fleet: set_draining(fleet, "r2", True), WAIT)
    await kept.control.change(lambda fleet: set_standby(fleet, "r3", False), WAIT)
    await kept.control.change(lambda fleet: set_draining(fleet, "r2", True), WAIT)
    with pytest.raises(LastReplica):
        await kept.control.change(lambda fleet: set_standby(fleet, "r3", True), WAIT)


async def test_a_promotion_is_a_revision_with_a_ramp(kept: Kept) -> None:
    """It lasts over edits of the file that do not touch it, and can be taken back."""
    change = await kept.control.change(
        lambda fleet: set_standby(fleet, "r3", False), ChangeOptions()
    )
    assert change.changes == ("pool llm: endpoint r3 standby true -> false",)
    assert await kept.look() == []
    state = kept.control._state
    assert state is not None
    assert state.all_incarnations["r3"] == (1, 1_700_000_000_000)
    edited = FLEET.replace('"on_reject":"quorum"', '"on_reject":"keep"')
    assert edited != FLEET
    await kept.control.apply_file(edited, "fleet.yaml")
    assert await kept.look() == []
    await kept.control.change(lambda fleet: set_standby(fleet, "r3", True), ChangeOptions())
    assert await kept.look() == ["r3"]


async def test_a_restart_keeps_it_in_until_pickers_say_more() -> None:
    """Neither its ramp nor the way back begins anew before."""
    with closing(RevisionStore(None)) as store:
        again = Kept(store)
        await again.control.start(FLEET, "fleet.yaml", promoted=load('{"llm": {"r3": 77}}'))
        known, again.states = again.states, {}
        assert await again.look() == []
        assert await again.look(after=100) == []
        assert again.control.promoted == {"llm": {"r3": 77}}
        again.states = known
        assert await again.look() == []
        assert await again.look(after=10) == ["r3"]
        await again.control.stop()


@pytest.mark.parametrize("text", ["[]", '{"llm": 1}', '{"llm": {"r": "x"}}', "{"])
def test_nonsense_in_the_store_is_an_error(text: str) -> None:
    """The server starts without it."""
    with pytest.raises(ValueError, match=r"no standbys|Expecting"):
        load(text)


def test_what_is_stored_is_read() -> None:
    """As it was."""
    assert load(dump({"llm": {"r3": 5}})) == {"llm": {"r3": 5}}
