"""A publisher with clients whose answers a test controls, for tests of publications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    POOL_TYPE,
    ROUTE_CONFIG_NAME,
    ROUTE_TYPE,
    RUNTIME_NAME,
    RUNTIME_TYPE,
    WEIGHT_LAYERS,
)
from xds_server.control.rollout import Published, Rollout
from xds_server.fleet.revision import FleetState, Revision
from xds_server.protocol.course import Sent
from xds_server.protocol.messages import ResourceResponse, SotwRequest, short_type
from xds_server.protocol.publication import (
    QUORUM,
    Audience,
    OnReject,
    PickerLoad,
    PublicationOutcome,
    PublicationRun,
    Stage,
)
from xds_server.protocol.publisher import Publisher
from xds_server.protocol.snapshot import Snapshot
from xds_server.protocol.stream import SotwStream
from xds_server.server.service import Publication

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xds_server.fleet.model.fleet import Fleet


def envoys(clusters: str, routes: str = "1") -> Snapshot:
    """Build an Envoy snapshot: one cluster per letter, one route."""
    return Snapshot.of(
        {
            CLUSTER_TYPE: {name: name.encode() for name in clusters},
            ENDPOINT_TYPE: {name: name.encode() for name in clusters},
            ROUTE_TYPE: {"r": routes.encode()},
        }
    )


def pools(content: str) -> Snapshot:
    """Build a picker snapshot with one pool."""
    return Snapshot.of({POOL_TYPE: {"p": content.encode()}})


class Simulation:
    """A publisher with clients whose answers the test controls."""

    def __init__(self) -> None:
        self.publisher = Publisher()
        self.now = 0.0
        self.waiting: dict[int, list[ResourceResponse]] = {}
        self.got: dict[int, list[str]] = {}
        self.names: dict[tuple[int, str], tuple[str, ...]] = {}
        self.reports: dict[str, PickerLoad] = {}

    def join(
        self,
        number: int,
        audience: Audience = "envoy",
        node: str = "",
        *,
        build: str = "",
        group: str = "",
        cluster: str = "",
        version: str = "",
    ) -> None:
        """Connect a client, which subscribes; with a version it resumes."""
        stream = SotwStream(str(number))
        self.waiting[number], self.got[number] = [], []
        node = node or f"n{number}"
        self.publisher.connect(
            number, node, audience, stream, self.now, build=build, group=group, cluster=cluster
        )
        types = {CLUSTER_TYPE: (), ROUTE_TYPE: ("r",)} if audience == "envoy" else {POOL_TYPE: ()}
        for type_url, names in types.items():
            self.names[number, type_url] = names
            request = SotwRequest(type_url, names, version)
            self.take(self.publisher.request(number, request, self.now)[0])

    def take(self, sent: Sent) -> None:
        for number, response in sent:
            self.waiting[number].append(response)
            self.got[number].append(short_type(response.type_url))

    def answer(self, *numbers: int, error: str | None = None) -> None:
        """Let clients, one after the other, answer all messages and those that follow.

        The first answer of all is a NACK where there is an ``error``.
        """
        for number in numbers:
            while self.waiting[number]:
                got = self.waiting[number].pop(0)
                names = self.names[number, got.type_url]
                request = SotwRequest(got.type_url, names, got.version, got.nonce, error)
                error = None
                self.take(self.publisher.request(number, request, self.now)[0])

    def leave(self, number: int) -> None:
        self.waiting[number].clear()
        self.take(self.publisher.disconnect(number, self.now))

    def publish(
        self,
        *stages: Stage,
        on_reject: OnReject = "rollback",
        quorum: float = QUORUM,
        waves: bool = False,
    ) -> PublicationRun:
        run, sent = self.publisher.publish(
            stages, self.now, on_reject=on_reject, quorum=quorum, waves=waves
        )
        self.take(sent)
        return run

    def outcome(self, run: PublicationRun) -> PublicationOutcome:
        return self.publisher.outcome(run, self.now)

    def report(self, number: int = 11, *, old: bool = False, **in_flight: int) -> None:
        """Let a picker report, naming its last response or the one before."""
        client = self.publisher._course.clients[number]
        taken = "older" if old else client.stream.acknowledged(POOL_TYPE)
        self.reports[client.node] = PickerLoad(in_flight, taken)
        self.take(self.publisher.loads(self.reports, self.now))

    def at(self, now: float) -> None:
        self.now = now
        self.take(self.publisher.tick(now))


def five(old: str, new: str, **kwargs: frozenset[str]) -> tuple[Stage, ...]:
    """The stages from the clusters ``old`` to ``new``."""
    union = "".join(sorted(set(old + new)))
    return (
        Stage("add", "envoy", envoys(union, old)),
        Stage("use", "picker", pools(union)),
        Stage("switch", "envoy", envoys(union, new)),
        Stage("stop", "picker", pools(new)),
        Stage("remove", "envoy", envoys(new, new), kwargs.get("drain", frozenset())),
    )


def running(envoy_count: int = 1, pickers: int = 1) -> Simulation:
    """Return a simulation in which the cluster "a" is published and held by all clients."""
    sim = Simulation()
    for number in range(envoy_count):
        sim.join(number + 1)
    for number in range(pickers):
        sim.join(number + 11, "picker")
    state = Stage("add", "envoy", envoys("a", "a")), Stage("use", "picker", pools("a"))
    sim.publish(*state)
    sim.answer(*sim.waiting)
    assert sim.outcome(sim.publish(*state)).state == "done"  # now all have stood through one
    return sim


WANTED = {
    "envoy": {
        CLUSTER_TYPE: (),
        ROUTE_TYPE: (ROUTE_CONFIG_NAME,),
        RUNTIME_TYPE: (RUNTIME_NAME, *WEIGHT_LAYERS),
    },
    "picker": {POOL_TYPE: ()},
}
"""What clients of a rollout subscribe to."""


class RolloutWorld:
    """A rollout over a real publisher; each client answers when the test says so."""

    def __init__(self) -> None:
        self.publisher = Publisher()
        self.now = 0.0
        self.waiting: dict[int, list[ResourceResponse]] = {}
        self.audiences: dict[int, Audience] = {}
        self.rollout = Rollout(self)

    def connect(self, number: int, audience: Audience, group: str = "") -> None:
        """Connect a client, which subscribes."""
        self.waiting[number], self.audiences[number] = [], audience
        stream = SotwStream(str(number))
        self.publisher.connect(number, f"n{number}", audience, stream, self.now, group=group)
        for type_url, names in WANTED[audience].items():
            request = SotwRequest(type_url, names)
            self.take(self.publisher.request(number, request, self.now)[0])

    def publish(
        self,
        plan: Callable[[], Sequence[Stage]],
        *,
        on_reject: OnReject,
        quorum: float = QUORUM,
        waves: bool = False,
    ) -> Publication:
        """Start a publication, as the rollout asks for it."""
        run, sent = self.publisher.publish(
            plan, self.now, on_reject=on_reject, quorum=quorum, waves=waves
        )
        self.take(sent)
        return Publication(run, lambda run: self.publisher.outcome(run, self.now))

    def in_force(self, audience: Audience) -> Snapshot | None:
        """Return what is in force."""
        return self.publisher.in_force(audience)

    def rolled(self, number: int, fleet: Fleet) -> Published:
        """Publish a fleet as a revision."""
        return self.rollout.publish(FleetState(Revision(number, 0, "ann", "", ()), fleet, {}, None))

    def answer(self, number: int, error: str | None = None) -> None:
        """Answer the oldest message of a client."""
        if self.waiting[number]:
            got = self.waiting[number].pop(0)
            names = WANTED[self.audiences[number]][got.type_url]
            request = SotwRequest(got.type_url, names, got.version, got.nonce, error)
            self.take(self.publisher.request(number, request, self.now)[0])

    def take(self, sent: Sent) -> None:
        """Queue messages until they are answered."""
        for number, response in sent:
            self.waiting[number].append(response)
