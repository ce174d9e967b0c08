"""A control server whose sources report what a test says."""

from __future__ import annotations

import asyncio

from envoy.config.core.v3 import health_check_pb2
from envoy.config.endpoint.v3 import endpoint_pb2

from support.controls import World
from support.fleets import fleet, pool
from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import ENDPOINT_TYPE, POOL_TYPE
from xds_server.applications.discovery.membership import Clocks, Membership
from xds_server.applications.discovery.readiness import Question
from xds_server.applications.discovery.sources.resolver import Resolver
from xds_server.applications.discovery.table import SourceTools
from xds_server.applications.discovery.values import Found, Observation
from xds_server.fleet.members.members import Members
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.store import RevisionStore

FILE = "file /f"
DNS = "dns t.example:8000/8001"
FINDING = fleet(
    pool(
        variants=[{"name": "stable"}],
        endpoints=[],
        endpoints_from=[
            {"file": "/f"},
            {"dns": {"name": "t.example", "http": 8000, "grpc": 8001, "min_interval": 1}},
        ],
        membership={"admit": "found", "hold": 60, "drain": 20, "damping": 4},
    )
)


class Silent:
    """A source that reports what a test says."""

    async def run(self, found, trouble) -> None:
        """Wait for ever."""
        self.found, self.trouble = found, trouble
        await asyncio.Event().wait()


class Finding:
    """A control and a membership with a clock that the test moves."""

    def __init__(self, store: RevisionStore, resolver: Resolver | None = None) -> None:
        self.world = World(store)
        self.sources: dict[str, Silent] = {}
        self.stored: list[Members] = []
        self.ready: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.in_flight: dict[str, int] = {}
        self.tools = SourceTools(resolver or Resolver(), lambda: 0.0)
        self.membership = Membership(
            self.world.control,
            self.tools,
            Clocks(lambda: self.world.now, lambda: int(self.world.now * 1000)),
            lambda: self.in_flight,
            self.is_ready,
            self.keep,
            self.make,
        )

    def make(self, origin, _tools) -> Silent:
        """Make a silent source."""
        self.sources[origin.key] = Silent()
        return self.sources[origin.key]

    async def keep(self, members: Members) -> None:
        """Store members."""
        self.stored.append(members)

    async def is_ready(self, question: Question) -> bool:
        """Say which addresses are ready."""
        self.asked.append((question.http or "", question.path))
        return question.http in self.ready

    async def start(self, written: Fleet = FINDING, members: Members | None = None) -> None:
        """Publish the fleet and start the sources."""
        await self.world.control.start(written.model_dump_json(), "fleet.yaml", members)
        known = members or Members()
        self.membership._published = dict(known.pools)
        self.membership._published_low = dict(known.low_objectives)
        await self.step()
        await asyncio.sleep(0)

    async def step(self, seconds: float = 0.0) -> dict[str, bool]:
        """Apply what was found; return the ids that pickers are told, and whether they drain."""
        self.world.now += seconds
        await self.membership._pass()
        return self.told()

    def told(self) -> dict[str, bool]:
        """Return what pickers have, after checking that Envoys have the same."""
        publisher = self.world.publisher
        pickers, envoys = publisher.in_force("picker"), publisher.in_force("envoy")
        assert pickers is not None
        assert envoys is not None
        message = pool_pb2.Pool.FromString(pickers.resources(POOL_TYPE)["llm"].message)
        found = {each.id: each.draining for each in message.endpoints}
        there = endpoint_pb2.ClusterLoadAssignment.FromString(
            envoys.resources(ENDPOINT_TYPE)["llm/stable/http"].message
        )
        hosts = {
            f"{h.endpoint.address.socket_address.address}": h.health_status
            == health_check_pb2.DRAINING
            for group in there.endpoints
            for h in group.lb_endpoints
        }
        assert hosts == {
            each.http_address.rpartition(":")[0]: each.draining for each in message.endpoints
        }
        return found

    async def stop(self) -> None:
        """Stop all tasks."""
        for each in self.membership._pools.values():
            for watched in each.sources.values():
                watched.task.cancel()
        await self.world.control.stop()


def answer(*numbers: int) -> Observation:
    """Return an answer with these replicas."""
    return Observation(
        tuple(Found(f"r{n}", f"10.0.0.{n}:8000", f"10.0.0.{n}:8001") for n in numbers)
    )
