"""Weights and limits reach correct clients within a second, whatever the others do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from google.protobuf import any_pb2
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.fleets import endpoint, fleet, pool
from support.publications import RolloutWorld
from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import POOL_TYPE, RUNTIME_TYPE

if TYPE_CHECKING:
    from xds_server.protocol.publication import Audience

Manner = Literal["correct", "mute", "silent", "refusing"]
PICKER = 5
STEP_S = 0.05
BOUND_S = 1.0


def made(canary: int = 10, limit: int = 32, paths: int = 0, replicas: int = 3) -> Any:
    """Return a fleet."""
    other = pool(
        "other",
        endpoints=[endpoint(10 + each) for each in range(replicas)],
        variants=[{"name": "only"}],
        match={"models": ["o"], "paths": [f"/o{paths}/"]},
    )
    variants = [{"name": "stable", "weight": 100 - canary}, {"name": "canary", "weight": canary}]
    breaker = {"max_requests": 1000 + limit, "per_endpoint_in_flight": limit}
    return fleet(pool(default=True, variants=variants, circuit_breaker=breaker), other)


class World(RolloutWorld):
    """Correct clients answer one step after a message."""

    def __init__(self) -> None:
        """Connect the correct clients, and publish the first fleet."""
        super().__init__()
        self.manners: dict[int, Manner] = {}
        self.revision = 0
        for _ in range(4):
            self.join("envoy", "correct")
        self.join("picker", "correct")
        for _ in range(2):  # through the second one they have stood
            self.change(made())
            self.run(1.0)

    def join(self, audience: Audience, manner: Manner) -> int:
        """Connect a client; those that are not silent answer what they get first."""
        number = len(self.manners) + 1
        self.manners[number] = "correct"
        self.connect(number, audience)
        if manner != "silent":
            self.run(0.5)
        self.manners[number] = manner
        return number

    def change(self, wanted: Any) -> None:
        """Publish a fleet."""
        self.revision += 1
        self.rolled(self.revision, wanted)

    def run(self, seconds: float) -> None:
        """Let time pass; clients answer as they do."""
        until = self.now + seconds
        while self.now < until:
            self.now += STEP_S
            self.take(self.publisher.tick(self.now))
            for number, manner in self.manners.items():
                if manner in {"mute", "silent"}:
                    continue
                for _ in list(self.waiting[number]):
                    self.answer(number, "no" if manner == "refusing" else None)

    def held(self, number: int) -> set[tuple[str, int]]:
        """Return the weights and limits that a client has acknowledged."""
        found = set[tuple[str, int]]()
        for each in self.publisher._course.clients[number].stream.resources():
            if each.state != "SYNCED":
                continue
            if each.type_url == POOL_TYPE and each.name == "llm":
                message = pool_pb2.Pool()
                any_pb2.Any.FromString(each.packed).Unpack(message)
                found |= {(variant.name, variant.weight) for variant in message.variants}
                found.add(("limit", message.per_endpoint_in_flight))
            if each.type_url == RUNTIME_TYPE:
                found |= runtime(each.packed)
        return found


def runtime(packed: bytes) -> set[tuple[str, int]]:
    """Return the weights of the pool ``llm``, and its limit of requests."""
    from envoy.service.runtime.v3 import rtds_pb2  # noqa: PLC0415 - only here

    fields = rtds_pb2.Runtime.FromString(any_pb2.Any.FromString(packed).value).layer.fields
    found = set()
    for key, value in fields.items():
        if key.startswith("tidegate.weight.") and "llm/" in key:
            found.add((key.rpartition("/")[0].rpartition("/")[2], int(value.string_value)))
            found.add((key.rpartition("/")[2], int(value.string_value)))
        if key.startswith("circuit_breakers.llm/") and key.endswith(".max_requests"):
            found.add(("limit", int(value.number_value) - 1000))
    return found


@settings(max_examples=25, deadline=None)
@example(others=[("envoy", "mute")], heavy=True, pause=0.0)
@example(others=[("envoy", "silent"), ("picker", "mute")], heavy=False, pause=0.0)
@given(
    others=st.lists(
        st.tuples(
            st.sampled_from(["envoy", "picker"]), st.sampled_from(["mute", "silent", "refusing"])
        ),
        max_size=3,
    ),
    heavy=st.booleans(),
    pause=st.sampled_from([0.0, 0.1, 0.3, 2.0]),
)
def test_weights_and_limits_reach_correct_clients_within_a_second(
    others: list[tuple[Audience, Manner]], *, heavy: bool, pause: float
) -> None:
    """Also while another change waits for clients that refuse, or say nothing."""
    world = World()
    correct = list(world.manners)
    for audience, manner in others:
        world.join(audience, manner)
    paths = 0
    if heavy:
        paths = 1
        world.change(made(paths=paths, replicas=4))
        world.run(pause)
    for canary, limit in ((0, 7), (60, 9)):
        world.change(made(canary, limit, paths, 4 if heavy else 3))
        world.run(BOUND_S)
        for number in correct:
            expected = {("canary", canary), ("stable", 100 - canary), ("limit", limit)}
            assert expected <= world.held(number)


def test_a_variant_gets_no_first_share_before_its_replicas() -> None:
    """Pickers would choose it for Envoys that lack the replica."""
    world = World()
    bare = [endpoint(1), endpoint(2)]
    variants = [{"name": "stable", "weight": 1}, {"name": "canary", "weight": 0}]
    world.change(fleet(pool(default=True, variants=variants, endpoints=bare)))
    world.run(5.0)
    world.manners[1] = "mute"
    variants = [{"name": "stable", "weight": 1}, {"name": "canary", "weight": 3}]
    world.change(fleet(pool(default=True, variants=variants)))
    world.run(BOUND_S)
    assert ("canary", 0) in world.held(PICKER)
    world.run(5.0)
    assert ("canary", 3) in world.held(PICKER)
