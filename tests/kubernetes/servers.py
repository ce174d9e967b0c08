"""Two control servers on one store, and an Envoy that knows both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING

import grpc
from aiohttp import ClientError, ClientSession

from support.control_process import WAIT_S, piped
from tidegate.stack.envoy import envoy_binary, envoy_command, envoy_environment, render_bootstrap
from tidegate.stack.processes import spawning
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.admin.v1 import admin_pb2_grpc
from tidegate_common.children import module_command

if TYPE_CHECKING:
    from tidegate.stack.processes.ports import HeldPorts
    from xds_server.fleet.model.fleet import Fleet

FORCED = api.ChangeOptions(force=True)


class Servers:
    """Two control servers, and an Envoy that knows both.

    Args:
        folder: Holds their files.
        store: Options that name the store.
        ports: Free ones.
        wanted: Their fleet.
    """

    def __init__(self, folder, store: tuple[str, ...], ports: HeldPorts, wanted: Fleet) -> None:
        self.folder, self.store = folder, store
        self.file = folder / "fleet.yaml"
        self.file.write_text(wanted.model_dump_json())
        self.ads = [ports.address() for _ in range(2)]
        self.admins = [ports.address() for _ in range(2)]
        self.metrics = [ports.address() for _ in range(2)]
        self.envoy_admin = ports.address()
        self.processes: list = [None, None]
        self.events: list[asyncio.Queue] = [asyncio.Queue(), asyncio.Queue()]
        self._reading: list[asyncio.Task] = []

    async def start(self, number: int) -> None:
        """Start a control server."""
        words = (
            *("--fleet", str(self.file), *self.store, "--log-format", "json"),
            *("--ads", self.ads[number], "--admin", self.admins[number]),
            *("--metrics", self.metrics[number]),
        )
        process, lines = await piped(module_command("xds_server", *words))
        self.processes[number] = process
        events = self.events[number] = asyncio.Queue()

        async def read() -> None:
            async for line in lines:
                with contextlib.suppress(ValueError):
                    events.put_nowait(json.loads(line))
            events.put_nowait({"event": "ended"})

        self._reading.append(asyncio.create_task(read()))

    async def event(self, number: int, name: str) -> dict:
        """Return the next event of this name."""
        async with asyncio.timeout(WAIT_S):
            while (event := await self.events[number].get())["event"] != name:
                assert event["event"] != "ended", name
        return event

    async def ask(self, number: int, call: str, asked):
        """Call a control server as an operator does."""
        async with grpc.aio.insecure_channel(self.admins[number]) as channel:
            return await getattr(admin_pb2_grpc.AdminStub(channel), call)(asked)

    async def drain(self, number: int, endpoint: str) -> int:
        """Drain a replica; return the revision."""
        asked = api.SetDrainingRequest(endpoint=endpoint, draining=True, options=FORCED)
        return (await self.ask(number, "SetDraining", asked)).revision

    def kill(self, number: int) -> None:
        """Kill a control server."""
        os.kill(self.processes[number].pid, signal.SIGKILL)

    async def envoy(self) -> spawning.Process:
        """Start the Envoy."""
        path = self.folder / "envoy.yaml"
        path.write_text(
            render_bootstrap("envoy-1", "test", ",".join(self.ads), self.envoy_admin, "delta")
        )
        program = spawning.Program(envoy_command(envoy_binary(), path, 1), envoy_environment())
        with (self.folder / "envoy.log").open("wb") as log:
            self.processes.append(await spawning.spawn(program, log))
        return self.processes[-1]

    async def hosts(self) -> dict[str, str]:
        """Return what the Envoy knows of the replicas, by address; none while it starts."""
        url = f"http://{self.envoy_admin}/clusters?format=json"
        try:
            async with ClientSession() as http, http.get(url) as answer:
                found = json.loads(await answer.text())
        except ClientError:
            return {}
        return {
            f"{one['name']} {each['address']['socket_address']['port_value']}": each[
                "health_status"
            ].get("eds_health_status", "")
            for one in found.get("cluster_statuses", ())
            if one["name"].startswith("llm/")
            for each in one.get("host_statuses", ())
        }

    async def draining(self) -> int:
        """Return how many replicas the Envoy knows to drain."""
        return sum(each == "DRAINING" for each in (await self.hosts()).values())

    async def begin(self) -> None:
        """Start the first one, which leads, and then the second."""
        await self.start(0)
        await self.event(0, "control_server_ready")
        await self.start(1)
        await self.event(1, "control_server_follows")

    async def end(self) -> None:
        """Kill all."""
        for each in self.processes:
            if each is not None and each.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
                await each.wait()
        await asyncio.gather(*self._reading)
