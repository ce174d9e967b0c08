"""Whatever some clients do, the others get each drain and the newest state in time.

The publisher runs on a simulated clock, with streams of both variants. Each client behaves in one
way: a healthy one answers within ``ANSWER_S``, a slow one later, a mute one never, a refusing one
refuses new clusters, a flapping one reconnects without a word, and a twin uses the node id of
another. Changes supersede each other at random times.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from google.protobuf.any_pb2 import Any as AnyMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from support.publications import envoys, five, pools
from tidegate_api.names import CLUSTER_TYPE, ENDPOINT_TYPE, POOL_TYPE, ROUTE_TYPE
from xds_server.protocol.course import Sent
from xds_server.protocol.gate.quarantine import LIMIT
from xds_server.protocol.messages import DeltaRequest, SotwRequest
from xds_server.protocol.publication import OnReject, PublicationRun, Stage
from xds_server.protocol.publisher import Publisher
from xds_server.protocol.stream import DeltaStream, SotwStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from xds_server.protocol.client import Client
    from xds_server.protocol.messages import ResourceResponse
    from xds_server.protocol.publication import Audience

Manner = Literal["healthy", "slow", "mute", "refusing", "flapping"]
ANSWER_S = 0.02
SLOW_S = 3.0
FLAP_S = 0.7
BOUND_S = 1.0
SETTLE_S = 20.0
"""All clients that can be late are late for the second time, or were never waited for."""


@dataclass
class Actor:
    """A client and its messages that are not answered yet."""

    number: int
    node: str
    audience: Audience
    manner: Manner
    delta: bool
    since: float = 0.0
    inbox: list[tuple[float, ResourceResponse]] = field(default_factory=list)
    mute: bool = False


class World:
    """A publisher and its actors on one clock."""

    def __init__(self, on_reject: OnReject, *, waves: bool) -> None:
        self.publisher = Publisher()
        self.now = 0.0
        self.actors: dict[int, Actor] = {}
        self.numbers = 0
        self.on_reject, self.waves = on_reject, waves
        self.run: PublicationRun | None = None
        self.good = self.target = "a"
        self.drains = ""
        self.falls_back = False
        """Whether a refused change is followed by the last good state, as in the control server."""

    def join(self, node: str, audience: Audience, manner: Manner, *, delta: bool) -> None:
        """Connect an actor and let it subscribe."""
        self.numbers += 1
        actor = Actor(self.numbers, node, audience, manner, delta, self.now)
        self.actors[actor.number] = actor
        stream = DeltaStream(str(actor.number)) if delta else SotwStream(str(actor.number))
        self.publisher.connect(actor.number, node, audience, stream, self.now, group=node[-1])
        wanted = {CLUSTER_TYPE: (), ENDPOINT_TYPE: tuple("abcdefgh"), ROUTE_TYPE: ("r",)}
        for type_url, names in ({POOL_TYPE: ()} if audience == "picker" else wanted).items():
            request = DeltaRequest(type_url, names) if delta else SotwRequest(type_url, names)
            self.take(self.publisher.request(actor.number, request, self.now)[0])

    def take(self, sent: Sent) -> None:
        """Queue messages until their clients answer."""
        for number, response in sent:
            manner = self.actors[number].manner
            after = {"slow": SLOW_S, "mute": float("inf")}.get(manner, ANSWER_S)
            if self.actors[number].mute:
                after = float("inf")
            self.actors[number].inbox.append((self.now + after, response))

    def answer(self, actor: Actor, response: ResourceResponse) -> None:
        """Answer one message."""
        refuses = actor.manner == "refusing" and response.type_url == CLUSTER_TYPE
        new = any(resource.name != "a" for resource in response.resources)
        error = "too old" if refuses and new else None
        request: DeltaRequest | SotwRequest
        if actor.delta:
            request = DeltaRequest(response.type_url, nonce=response.nonce, error=error)
        else:
            names = {ENDPOINT_TYPE: tuple("abcdefgh"), ROUTE_TYPE: ("r",)}
            names = names.get(response.type_url, ())
            request = SotwRequest(response.type_url, names, response.version, response.nonce, error)
        self.take(self.publisher.request(actor.number, request, self.now)[0])

    def step(self, end: float) -> None:
        """Let time pass to the next event, at most until ``end``."""
        times = [actor.inbox[0][0] for actor in self.actors.values() if actor.inbox]
        times += [one.since + FLAP_S for one in self.actors.values() if one.manner == "flapping"]
        times.append(self.publisher.wake_at or end)
        self.now = max(self.now, min(end, *times))
        for actor in list(self.actors.values()):
            if actor.manner == "flapping" and self.now >= actor.since + FLAP_S:
                del self.actors[actor.number]
                self.take(self.publisher.disconnect(actor.number, self.now))
                self.join(actor.node, actor.audience, "flapping", delta=actor.delta)
                self.actors[self.numbers].mute = True
                continue
            while actor.inbox and actor.inbox[0][0] <= self.now:
                self.answer(actor, actor.inbox.pop(0)[1])
        at = self.publisher.wake_at
        if at is not None and at <= self.now:
            self.take(self.publisher.tick(self.now))
        run = self.run
        if self.falls_back and run and self.publisher.outcome(run, self.now).state == "abandoned":
            self.target = self.good  # with all drains, as the fallback to a good revision has
            self.publish(*self.stages())

    def until(self, held: Callable[[], bool], within: float) -> None:
        """Let time pass until ``held``; fail after ``within`` seconds."""
        end = self.now + within
        while not held():
            assert self.now < end, f"not within {within} s"
            self.step(end)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self.now < end:
            self.step(end)

    def publish(self, *stages: Stage) -> PublicationRun:
        """Publish stages."""
        run, sent = self.publisher.publish(
            stages, self.now, on_reject=self.on_reject, waves=self.waves
        )
        self.take(sent)
        self.run = run
        return run

    def change(self, new: str) -> PublicationRun:
        """Publish a change that starts from what clients may have, as the rollout does."""
        if self.run is not None and self.publisher.outcome(self.run, self.now).state == "done":
            self.good = self.target
        self.target = new
        return self.publish(*self.stages())

    def drain(self, replica: int) -> None:
        """Publish a drain: first of all in what the pickers have now."""
        self.drains += f"d{replica},"
        held = self.publisher.in_force("picker")
        assert held is not None
        (pool,) = held.resources(POOL_TYPE).values()
        urgent = pools(AnyMessage.FromString(pool.any).value.decode() + self.drains)
        self.publish(Stage("urgent", "picker", urgent, urgent=True), *self.stages())

    def stages(self) -> list[Stage]:
        """Return the stages to the target, with all drains."""
        return [
            stage
            if stage.audience == "envoy"
            else replace(stage, snapshot=pools(stage.label + self.target + self.drains))
            for stage in five(self.good, self.target)
        ]

    def drained(self, replica: int) -> bool:
        """Return whether the healthy pickers have acknowledged a drain."""
        for one in self.healthy("picker"):
            stream = self.client(one).stream
            assert stream.snapshot is not None
            (pool,) = stream.snapshot.resources(POOL_TYPE).values()
            if f"d{replica},".encode() not in pool.any or stream.standing().state != "SYNCED":
                return False
        return True

    def client(self, actor: Actor) -> Client:
        """Return the publisher's view of an actor."""
        return self.publisher._course.clients[actor.number]

    def healthy(self, audience: Audience) -> list[Actor]:
        """Return the actors that answer in time."""
        found = self.actors.values()
        return [one for one in found if one.audience == audience and one.manner == "healthy"]

    def newest(self) -> bool:
        """Return whether all healthy clients hold the newest state."""
        return self.publisher.settled and all(
            self.client(one).stream.snapshot == self.publisher.in_force(one.audience)
            and self.client(one).standing.state == "SYNCED"
            for audience in ("envoy", "picker")
            for one in self.healthy(audience)
        )


manners = st.sampled_from(["slow", "mute", "refusing", "flapping"])
crowds = st.lists(st.tuples(manners, st.booleans(), st.booleans()), max_size=4)


def crowd(others: list[tuple[Manner, bool, bool]], on_reject: OnReject, *, waves: bool) -> World:
    """Return three healthy clients beside ``others``: (manner, delta, twin of a healthy one)."""
    world = World(on_reject, waves=waves)
    for node, delta in (("h1", False), ("h2", True)):
        world.join(node, "envoy", "healthy", delta=delta)
    world.join("p1", "picker", "healthy", delta=False)
    for number, (manner, delta, twin) in enumerate(others):
        world.join("h1" if twin else f"o{number}", "envoy", manner, delta=delta)
    world.publish(Stage("add", "envoy", envoys("a", "a")), Stage("use", "picker", pools("a")))
    for new in ("a", "ab", "a", "ab", "a"):  # who is silent or slow is known by then
        world.wait(SETTLE_S)
        world.change(new)
    world.wait(SETTLE_S)
    return world


@settings(max_examples=8, deadline=None)
@given(
    others=crowds,
    gaps=st.lists(st.sampled_from([0.0, 0.02, 0.1, 0.4, 1.2]), min_size=1, max_size=12),
    on_reject=st.sampled_from(["rollback", "keep", "quorum"]),
    waves=st.booleans(),
    data=st.data(),
)
def test_healthy_clients_get_drains_and_the_newest_state_in_time(
    others: list[tuple[Manner, bool, bool]],
    gaps: list[float],
    on_reject: OnReject,
    waves: bool,
    data: st.DataObject,
) -> None:
    """Mute, slow, refusing, flapping and twin clients hold up no other, in storms too."""
    world = crowd(others, on_reject, waves=waves)
    world.falls_back = True
    for count, gap in enumerate(gaps):
        if data.draw(st.booleans(), label="drain"):
            world.drain(count)
            world.until(partial(world.drained, count), BOUND_S)
        else:
            world.change(data.draw(st.sampled_from(["a", "ab", "ac", "bd", "e"]), label="to"))
        world.wait(gap)
    world.until(world.newest, BOUND_S)


@settings(max_examples=8, deadline=None)
@given(others=crowds, delta=st.booleans())
def test_a_refusing_client_vetoes_a_few_changes_only(
    others: list[tuple[Manner, bool, bool]], delta: bool
) -> None:
    """Where one more client refuses all, quarantine ends all vetoes by the rule."""
    world = crowd([*others, ("refusing", delta, False)], "rollback", waves=False)
    states = []
    for number in range(LIMIT * (len(others) + 1) + 2):
        run = world.change("a" + "bcdefgh"[number % 7])
        world.wait(7.0)
        states.append(world.publisher.outcome(run, world.now).state)
        if states[-1] == "abandoned":
            world.publish(*five(world.good, world.good))
            world.wait(7.0)
            world.target = world.good
    assert states.count("abandoned") <= (LIMIT - 1) * (len(others) + 1)
    assert states[-1] == "done"
    quarantined = {a.manner for a in world.actors.values() if world.publisher.quarantine(a.number)}
    assert quarantined <= {"refusing"}
    assert quarantined


@settings(max_examples=8, deadline=None)
@given(others=crowds)
def test_no_healthy_client_is_ever_quarantined_or_late(
    others: list[tuple[Manner, bool, bool]],
) -> None:
    """Not even one that shares its node id with a client that is."""
    world = crowd(others, "rollback", waves=False)
    for number in range(6):
        world.change("a" + "bcdefg"[number])
        world.wait(0.5)
    for one in world.healthy("envoy") + world.healthy("picker"):
        assert not world.publisher.quarantine(one.number)
        assert world.client(one).left not in {"STALLED", "QUARANTINED"}
