"""A control server in a process of its own, without pickers and Envoys."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path

import grpc

from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.admin.v1 import admin_pb2_grpc

WAIT_S = 60.0


class ControlProcess:
    """A control server in a process of its own."""

    def __init__(self, process, events: asyncio.Queue, ready: dict, admin) -> None:
        self.process, self.events, self.admin = process, events, admin
        self.ads: str = ready["ads"]

    async def event(self, name: str) -> dict:
        """Return the next event of this name in the log."""
        async with asyncio.timeout(WAIT_S):
            while (event := await self.events.get())["event"] != name:
                pass
        return event

    async def drain(self, endpoint: str, *, draining: bool = True) -> int:
        """Drain a replica; return the revision."""
        request = api.SetDrainingRequest(endpoint=endpoint, draining=draining)
        return (await self.admin.SetDraining(request)).revision

    async def status(self) -> api.GetStatusResponse:
        """Return the status."""
        return await self.admin.GetStatus(api.GetStatusRequest())

    async def draining(self) -> list[str]:
        """Return the replicas that drain."""
        answer = await self.admin.GetFleet(api.GetFleetRequest())
        (found,) = json.loads(answer.fleet_json)["pools"]
        return [each["id"] for each in found["endpoints"] if each.get("draining")]


@contextlib.asynccontextmanager
async def served(file: Path, state: Path):
    """Run a control server over this file and this folder; kill it at the end."""
    free = [word for name in ("ads", "admin", "metrics") for word in (f"--{name}", "127.0.0.1:0")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "xds_server", "--fleet", file, "--state", state, *free),
        *("--log-format", "json"),
        stderr=asyncio.subprocess.PIPE,
    )
    events: asyncio.Queue = asyncio.Queue()

    async def read() -> None:
        async for line in process.stderr:
            with contextlib.suppress(ValueError):
                events.put_nowait(json.loads(line))
        events.put_nowait({"event": "ended"})

    reader = asyncio.create_task(read())
    try:
        async with asyncio.timeout(WAIT_S):
            while (ready := await events.get())["event"] != "control_server_ready":
                assert ready["event"] != "ended"
        async with grpc.aio.insecure_channel(ready["admin"]) as channel:
            yield ControlProcess(process, events, ready, admin_pb2_grpc.AdminStub(channel))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await reader
