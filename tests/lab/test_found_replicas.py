"""Replicas that come and go in a file and in DNS fail no request through a real Envoy."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from support.in_process_stack import Flow, InProcessStack
from support.names import NameServer
from tidegate.stack.processes.waiting import wait_until
from xds_server.applications.discovery.membership import Clocks, Membership
from xds_server.applications.discovery.readiness import Readiness
from xds_server.applications.discovery.sources.resolver import Resolver
from xds_server.applications.discovery.table import SourceTools
from xds_server.fleet.members.members import Members

pytestmark = pytest.mark.timeout(170)

CHANGES = int(os.environ.get("TIDEGATE_STORM_CHANGES", "40"))


class FindingStack(InProcessStack):
    """A stack whose replicas are found: some by a file, some by names."""

    def __init__(self, server: NameServer, path: Path) -> None:
        super().__init__("delta", spare=10)
        self.server, self.path = server, path

    async def start_control(self) -> None:
        """Start the control server, and what finds replicas."""
        self.named = self.upstreams[:4]
        self.listed = self.upstreams[4:]
        for number in range(4):
            self.server.set(f"u{number}.example.", "A", ["127.0.0.1"])
        self.write(range(6))
        await super().start_control()
        self.readiness = await Readiness().__aenter__()
        self.membership = Membership(
            self.control,
            SourceTools(Resolver([self.server.address], 0.3), random.random),
            Clocks(time.monotonic, lambda: int(time.time() * 1000)),
            self.ads.in_flight,
            self.readiness,
            self.keep,
        )
        self.finding = asyncio.create_task(self.membership.run(Members()))

    async def keep(self, _members: Members) -> None:
        """Store nothing."""

    async def stop_control(self) -> None:
        """Stop what finds replicas, then the control server."""
        self.finding.cancel()
        await asyncio.gather(self.finding, return_exceptions=True)
        await self.readiness.__aexit__(None, None, None)
        await super().stop_control()

    def first_fleet(self) -> dict[str, Any]:
        """Return one pool that finds all of its replicas."""
        fleet = super().first_fleet()
        ports = [each.rpartition(":")[2] for each in self.named]
        fleet["pools"][0] |= {
            "variants": [{"name": "stable"}],
            "endpoints": [
                {"id": f"n{n}", "http": f"u{n}.example:{port}"} for n, port in enumerate(ports)
            ],
            "endpoints_from": [{"file": str(self.path), "protocols": ["http"]}],
            "membership": {"hold": "5s", "drain": "10s", "damping": "1s"},
        }
        return fleet

    def write(self, numbers, *, half: bool = False) -> None:
        """Write the file with these replicas, or a half of it."""
        text = "endpoints:\n" + "".join(
            f'- {{id: f{n}, http: "{self.listed[n]}"}}\n' for n in numbers
        )
        self.path.write_text(text[: len(text) // 2] if half else text)

    async def settled(self, wanted: set[str]) -> None:
        """Wait until exactly these replicas are active, and all clients know."""

        async def equal() -> str | None:
            found = {e.id: e.draining for e in self.control.fleet.pools[0].endpoints}
            return None if found == dict.fromkeys(wanted, False) else str(found)

        await wait_until(equal, "members", timeout_s=60, supervisors=())
        await self.serving()


async def test_no_request_fails_while_replicas_come_and_go(tmp_path: Path) -> None:
    """Whatever the sources say: all upstreams live on, so each request can be answered."""
    rng = random.Random(5)
    async with NameServer() as server, FindingStack(server, tmp_path / "replicas.yaml") as stack:
        await stack.settled({*(f"f{n}" for n in range(6)), *(f"n{n}" for n in range(4))})
        async with Flow(stack.listener) as flow:
            for _ in range(CHANGES):
                some = rng.sample(range(6), rng.randint(0, 6))
                kind = rng.random()
                if kind < 0.6:
                    stack.write(sorted(some), half=rng.random() < 0.2)
                else:
                    server.fault = rng.choice(["", "lost", "refused", "empty", "missing"])
                await asyncio.sleep(rng.choice([0.05, 0.3, 0.6]))
                active = [e for e in stack.control.fleet.pools[0].endpoints if not e.draining]
                assert active
                assert not flow.wrong
            server.fault = ""
            stack.write(range(3))
            stack.membership.confirm("llm")
            await stack.settled({*(f"f{n}" for n in range(3)), *(f"n{n}" for n in range(4))})
            await flow.reaches(10 * CHANGES)
        assert not flow.wrong
        assert stack.control.revision == 1
        known = await stack.envoy_page("clusters?format=json")
        hosts = {
            f"{a['address']}:{a['port_value']}"
            for cluster in known["cluster_statuses"]
            if cluster["name"] == "llm/stable/http"
            for a in (h["address"]["socket_address"] for h in cluster["host_statuses"])
        }
        assert hosts == {*stack.named, *stack.listed[:3]}
