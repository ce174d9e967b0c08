"""What few Envoys try in waves never comes to the others with another change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from envoy.config.route.v3 import route_pb2
from google.protobuf import any_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fleets import fleet, pool
from support.publications import RolloutWorld
from tidegate_api.names import ROUTE_CONFIG_NAME, ROUTE_TYPE

if TYPE_CHECKING:
    from xds_server.control.rollout import Published
    from xds_server.protocol.course import Sent
    from xds_server.protocol.snapshot import Snapshot

ENVOYS = (1, 2, 3)
PICKER = 9


class World(RolloutWorld):
    """Three Envoys, each a group of its own, and a picker."""

    def __init__(self) -> None:
        """Connect all, and publish the first fleet to them."""
        super().__init__()
        self.had: dict[int, set[int]] = {number: set() for number in (*ENVOYS, PICKER)}
        """Marks of the routes that an Envoy has been given."""
        self.newest = 0
        """Mark of the fleet published last."""
        for number in (*ENVOYS, PICKER):
            self.connect(number, "picker" if number == PICKER else "envoy", str(number))
        self.change(0)
        self.quiet()

    def change(self, mark: int) -> Published:
        """Publish the fleet whose routes have a mark."""
        self.newest = mark
        paths = [f"/mark-{mark}/"]
        served = pool(match={"models": ["m"], "paths": paths}, default=True)
        made = fleet(served, waves=True, on_reject="rollback")
        return self.rolled(mark, made)

    def quiet(self) -> None:
        """Let all clients answer until none owes an answer."""
        while any(self.waiting.values()):
            for number in self.waiting:
                self.answer(number)
        assert self.publisher.settled

    def take(self, sent: Sent) -> None:
        """Queue messages; none gives an Envoy the routes of an earlier change."""
        super().take(sent)
        for number, client in self.publisher._course.clients.items():
            new = marks(client.stream.snapshot) - self.had[number]
            assert new <= {self.newest}, f"Envoy {number} was given the routes of {new}"
            self.had[number] |= new


def marks(snapshot: Snapshot | None) -> set[int]:
    """Return the marks in the routes of a snapshot."""
    found = None if snapshot is None else snapshot.resources(ROUTE_TYPE).get(ROUTE_CONFIG_NAME)
    if found is None:
        return set()
    routes = route_pb2.RouteConfiguration.FromString(any_pb2.Any.FromString(found.any).value)
    text = str(routes).split("/mark-")[1:]
    return {int(part.partition("/")[0]) for part in text}


def until_switch(world: World, mark: int) -> Published:
    """Publish a change and let it come as far as the first wave of its switch."""
    published = world.change(mark)
    while published.outcome.stage != "switch":
        for number in world.waiting:
            world.answer(number)
    assert [mark in world.had[number] for number in ENVOYS] == [True, False, False]
    return published


def test_a_newer_change_begins_with_the_routes_that_all_have() -> None:
    """The newer one may be the way back from what the first wave has shown."""
    world = World()
    until_switch(world, 1)
    world.change(2)
    world.quiet()
    assert [world.had[number] for number in ENVOYS] == [{0, 1, 2}, {0, 2}, {0, 2}]


def test_what_was_superseded_in_its_waves_does_not_come_back_after_a_refusal() -> None:
    """The change after the refused one would carry it in its first stage."""
    world = World()
    until_switch(world, 1)
    second = world.change(2)
    world.answer(1)
    world.answer(1, error="bad route")
    assert second.outcome.state == "abandoned"
    world.change(3)
    world.quiet()
    assert [world.had[number] for number in ENVOYS] == [{0, 1, 3}, {0, 3}, {0, 3}]


def test_what_came_to_all_stays_in_force_for_a_newer_change() -> None:
    """All Envoys have the routes then: the newer change starts from them."""
    world = World()
    published = until_switch(world, 1)
    while published.outcome.in_waves:
        world.answer(1)
        world.answer(2)
    assert published.outcome.stage == "switch"
    world.change(2)
    reached = world.rollout.newest.before
    assert reached is not None
    assert marks(reached.force) == {1}


Step = tuple[Literal["change", "answer", "refuse"], int]
steps: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.just(0)),
        st.tuples(st.just("answer"), st.sampled_from([1, 1, 2, 3, PICKER])),
        st.tuples(st.just("refuse"), st.sampled_from(ENVOYS)),
    ),
    max_size=60,
)


@settings(max_examples=15, deadline=None)
@given(steps=steps)
def test_no_envoy_is_given_routes_of_any_change_but_the_newest(steps: list[Step]) -> None:
    """Or those that it had: whatever is superseded or refused, and when (``World.take``)."""
    world, number = World(), 0
    for action, who in steps:
        if action == "change":
            number += 1
            world.change(number)
        else:
            world.answer(who, error="bad" if action == "refuse" else None)
