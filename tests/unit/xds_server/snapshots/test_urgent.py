"""The urgent stage: which replicas pickers leave alone before the rest of a change."""

from __future__ import annotations

from google.protobuf import any_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fleets import endpoint, fleet, pool
from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import POOL_TYPE
from xds_server.fleet.view import View
from xds_server.protocol.snapshot import Snapshot
from xds_server.snapshots.build import picker_resources
from xds_server.snapshots.stages import urgent_stage

SICK = {"llm": {"r1": ("ejected",)}}


def replicas(count: int, draining: tuple[int, ...] = ()) -> list[dict]:
    """Return endpoints r1..rN."""
    return [endpoint(n, id=f"r{n}", draining=n in draining) for n in range(1, count + 1)]


def view(endpoints: list[dict], sick: dict | None = None) -> View:
    """Return a fleet with one pool."""
    return View(fleet(pool("llm", default=True, endpoints=endpoints)), sick=sick or {})


def held(state: View) -> Snapshot:
    """Return what pickers have."""
    return Snapshot.of(picker_resources(state))


def alone(have: Snapshot | None, new: View) -> set[str]:
    """Return the ids of the replicas that the stage marks beyond those that were marked."""
    stage = urgent_stage(have, new)
    if stage is None or have is None:
        return set()
    assert stage.urgent
    return marked(stage.snapshot) - marked(have)


def marked(snapshot: Snapshot) -> set[str]:
    """Return the ids of draining and sick replicas."""
    message = pool_pb2.Pool()
    any_pb2.Any.FromString(snapshot.resources(POOL_TYPE)["llm"].any).Unpack(message)
    return {one.id for one in message.endpoints if one.draining or one.told}


def test_a_drain_is_urgent() -> None:
    """The replica is left alone whatever else the change contains."""
    assert alone(held(view(replicas(3))), view(replicas(4, draining=(2,)))) == {"r2"}


def test_a_replica_found_sick_is_left_alone_at_once() -> None:
    """What pickers share about a replica waits for no client."""
    assert alone(held(view(replicas(3))), view(replicas(3), SICK)) == {"r1"}


def test_the_last_usable_replica_stays() -> None:
    """Its replacement comes with a later stage: until then it must serve."""
    new = view([*replicas(1, draining=(1,)), endpoint(9, id="r9")])
    assert alone(held(view(replicas(1))), new) == set()


def test_other_changes_are_not_urgent() -> None:
    """An added replica, one that is used again, or a drain that is in force already."""
    have = held(view(replicas(2, draining=(1,))))
    assert urgent_stage(have, view(replicas(3))) is None
    assert urgent_stage(have, view(replicas(2, draining=(1,)))) is None


def test_without_pickers_state_nothing_is_urgent() -> None:
    """The first publication has nothing to mark."""
    assert urgent_stage(None, view(replicas(2, draining=(1,)))) is None


@settings(max_examples=50)
@given(
    old=st.sets(st.integers(1, 4)),
    new=st.sets(st.integers(1, 4)),
    sick=st.sets(st.integers(1, 4)),
)
def test_a_usable_replica_remains_where_there_was_one(old: set, new: set, sick: set) -> None:
    """Whatever drains or is sick, the stage never takes the last one."""
    have = held(view(replicas(4, tuple(old))))
    target = view(replicas(4, tuple(new)), {"llm": {f"r{n}": ("ejected",) for n in sick}})
    stage = urgent_stage(have, target)
    if stage is not None and len(old) < 4:
        assert len(marked(stage.snapshot)) < 4
