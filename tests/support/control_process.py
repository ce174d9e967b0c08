"""A control server in a process of its own, without pickers and Envoys."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path

import grpc

from tidegate.stack.processes import spawning
from tidegate.stack.processes.spawning import service_environment
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.admin.v1 import admin_pb2_grpc
from tidegate_common.children import module_command

WAIT_S = 60.0


class ControlProcess:
    """A control server in a process of its own."""

    def __init__(self, process, events: asyncio.Queue, ready: dict, admin) -> None:
        self.process, self.events, self.admin = process, events, admin
        self.ads: str = ready["ads"]
        self.ready = ready
        """The event with its addresses."""
        self.seen: list[dict] = []
        """All that it has logged."""

    async def event(self, name: str) -> dict:
        """Return the next event of this name in the log."""
        async with asyncio.timeout(WAIT_S):
            while (event := await self.events.get())["event"] != name:
                pass
        return event

    async def kill(self) -> None:
        """Kill it and wait for its end; nothing happens if it has ended."""
        await _kill(self.process)

    async def drain(self, endpoint: str, *, draining: bool = True) -> int:
        """Drain a replica, whatever remains; return the revision."""
        options = api.ChangeOptions(force=True)
        request = api.SetDrainingRequest(endpoint=endpoint, draining=draining, options=options)
        return (await self.admin.SetDraining(request)).revision

    async def status(self) -> api.GetStatusResponse:
        """Return the status."""
        return await self.admin.GetStatus(api.GetStatusRequest())

    async def draining(self) -> list[str]:
        """Return the replicas that drain."""
        answer = await self.admin.GetFleet(api.GetFleetRequest())
        (found,) = json.loads(answer.fleet_json)["pools"]
        return [each["id"] for each in found["endpoints"] if each.get("draining")]


async def _kill(process: spawning.Process) -> None:
    if process.returncode is None:
        # asyncio's watcher may have reaped it already, and tells its exit code a turn later.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    await process.wait()


async def piped(command: tuple[str, ...]) -> tuple[spawning.Process, asyncio.StreamReader]:
    """Start a service; return it and what it writes."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as log:
        process = await spawning.spawn(spawning.Program(command, service_environment()), log)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reader, "rb")
    )
    return process, lines


async def logged(lines: asyncio.StreamReader, name: str) -> dict:
    """Return the next event of this name in what a service writes."""
    async with asyncio.timeout(WAIT_S):
        async for line in lines:
            with contextlib.suppress(ValueError):  # what is no event
                if (event := json.loads(line))["event"] == name:
                    return event
    raise AssertionError(f"ended without {name}")


@contextlib.asynccontextmanager
async def served(file: Path, state: Path, *options: str, admin: str = "127.0.0.1:0"):
    """Run a control server over this file and this folder; kill it at the end."""
    free = ["--ads", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--admin", admin]
    words = ("--fleet", str(file), "--state", str(state), *free, *options, "--log-format", "json")
    process, lines = await piped(module_command("xds_server", *words))
    events: asyncio.Queue = asyncio.Queue()
    seen: list[dict] = []

    async def read() -> None:
        async for line in lines:
            with contextlib.suppress(ValueError):
                seen.append(json.loads(line))
                events.put_nowait(seen[-1])
        events.put_nowait({"event": "ended"})

    reader = asyncio.create_task(read())
    try:
        async with asyncio.timeout(WAIT_S):
            while (ready := await events.get())["event"] != "control_server_ready":
                assert ready["event"] != "ended"
        async with grpc.aio.insecure_channel(ready["admin"]) as channel:
            made = ControlProcess(process, events, ready, admin_pb2_grpc.AdminStub(channel))
            made.seen = seen
            yield made
    finally:
        await _kill(process)
        await reader
