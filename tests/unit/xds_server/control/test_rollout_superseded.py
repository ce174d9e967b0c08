"""What few Envoys try in waves never comes to the others with another change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from envoy.config.route.v3 import route_pb2
from google.protobuf import any_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fleets import fleet, pool
from tidegate_api.names import (
    CLUSTER_TYPE,
    POOL_TYPE,
    ROUTE_CONFIG_NAME,
    ROUTE_TYPE,
    RUNTIME_TYPE,
    WEIGHT_LAYERS,
)
from xds_server.control.rollout import Published, Rollout
from xds_server.fleet.revision import FleetState, Revision
from xds_server.protocol.messages import SotwRequest
from xds_server.protocol.publisher import Publisher
from xds_server.protocol.stream import SotwStream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xds_server.protocol.course import Sent
    from xds_server.protocol.messages import ResourceResponse
    from xds_server.protocol.publication import (
        Audience,
        OnReject,
        PublicationOutcome,
        PublicationRun,
        Stage,
    )
    from xds_server.protocol.snapshot import Snapshot

ENVOYS = (1, 2, 3)
PICKER = 9
WANTED = {
    CLUSTER_TYPE: (),
    ROUTE_TYPE: (ROUTE_CONFIG_NAME,),
    RUNTIME_TYPE: tuple(WEIGHT_LAYERS),
}


@dataclass
class Handle:
    """A publication of the world."""

    world: World
    run: PublicationRun

    @property
    def outcome(self) -> PublicationOutcome:
        """Its outcome now."""
        return self.world.publisher.outcome(self.run, self.world.now)


@dataclass
class World:
    """A rollout over a real publisher; each client answers when the test says so."""

    publisher: Publisher = field(default_factory=Publisher)
    now: float = 0.0
    waiting: dict[int, list[ResourceResponse]] = field(default_factory=dict)
    had: dict[int, set[int]] = field(default_factory=dict)
    """Marks of the routes that an Envoy has been given."""
    newest: int = 0
    """Mark of the fleet published last."""

    def __post_init__(self) -> None:
        """Connect all, and publish the first fleet to them."""
        self.rollout = Rollout(self)
        for number in (*ENVOYS, PICKER):
            self.waiting[number], self.had[number] = [], set()
            audience: Audience = "picker" if number == PICKER else "envoy"
            stream = SotwStream(str(number))
            self.publisher.connect(number, f"n{number}", audience, stream, 0.0, group=str(number))
            wanted = {POOL_TYPE: ()} if audience == "picker" else WANTED
            for type_url, names in wanted.items():
                request = SotwRequest(type_url, names)
                self.take(self.publisher.request(number, request, 0.0)[0])
        self.change(0)
        self.quiet()

    # --- what the rollout asks for --------------------------------------------------------------

    def publish(
        self,
        plan: Callable[[], Sequence[Stage]],
        *,
        on_reject: OnReject,
        quorum: float = 0.5,
        waves: bool = False,
    ) -> Handle:
        """Start a publication."""
        run, sent = self.publisher.publish(
            plan, self.now, on_reject=on_reject, quorum=quorum, waves=waves
        )
        self.take(sent)
        return Handle(self, run)

    def in_force(self, audience: Audience) -> Snapshot | None:
        """Return what is in force."""
        return self.publisher.in_force(audience)

    # --- what a test does -----------------------------------------------------------------------

    def change(self, mark: int) -> Published:
        """Publish the fleet whose routes have a mark."""
        self.newest = mark
        paths = [f"/mark-{mark}/"]
        served = pool(match={"models": ["m"], "paths": paths}, default=True)
        made = fleet(served, waves=True, on_reject="rollback")
        revision = Revision(mark, 0, "ann", "", ())
        return self.rollout.publish(FleetState(revision, made, {}, None))

    def answer(self, number: int, error: str | None = None) -> None:
        """Answer the oldest message of a client, and let its grace times pass."""
        if self.waiting[number]:
            one = self.waiting[number].pop(0)
            names = () if number == PICKER else WANTED[one.type_url]
            request = SotwRequest(one.type_url, names, one.version, one.nonce, error)
            self.take(self.publisher.request(number, request, self.now)[0])

    def quiet(self) -> None:
        """Let all clients answer until none owes an answer."""
        while any(self.waiting.values()):
            for number in self.waiting:
                self.answer(number)
        assert self.publisher.settled

    def take(self, sent: Sent) -> None:
        """Queue messages until they are answered."""
        for number, response in sent:
            self.waiting[number].append(response)
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
