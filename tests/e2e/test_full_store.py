"""The control server on a disk that is full: drains work, and are written when they can be."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from support.fleets import fleet
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.admin.v1 import admin_pb2_grpc
from xds_server.fleet.store import FILE_NAME

WAIT_S = 60.0


class Limited:
    """A disk that is full because of a limit on the size of files (``RLIMIT_FSIZE``)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, pid: int) -> None:
        """Let the database's log grow no more."""
        size = max(path.stat().st_size for path in self.folder.glob(f"{FILE_NAME}*"))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def free(self, pid: int) -> None:
        """Take the limit away."""
        endless = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, endless)


class Tmpfs:
    """A small file system of its own, filled to the last byte; needs root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, _: int) -> None:
        """Write until there is no space left."""
        file = (self.folder / "ballast").open("wb", buffering=0)
        with file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass

    def free(self, _: int) -> None:
        """Make space."""
        (self.folder / "ballast").unlink()


@pytest.fixture(params=[Limited, Tmpfs])
def disk(request, tmp_path):
    """Return a disk for the state, which the test fills."""
    folder = tmp_path / "state"
    folder.mkdir()
    if request.param is Limited:
        yield Limited(folder)
        return
    mount = [shutil.which("mount") or "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        yield Tmpfs(folder)
    finally:
        subprocess.run([shutil.which("umount") or "umount", folder], check=True)


class Server:
    """A control server in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, events: asyncio.Queue, admin) -> None:
        self.process, self.events, self.admin = process, events, admin

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
            yield Server(process, events, admin_pb2_grpc.AdminStub(channel))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await reader


async def test_drains_work_on_a_full_disk_and_are_written_later(tmp_path, disk) -> None:
    """In order, with all they depend on; other changes are refused until then."""
    file = tmp_path / "fleet.yaml"
    file.write_text(fleet().model_dump_json())
    async with served(file, disk.folder) as server:
        disk.fill(server.process.pid)
        assert await server.drain("r1") == 2
        shed = api.SetDropOverloadRequest(pool="llm", percent=10)
        assert (await server.admin.SetDropOverload(shed)).revision == 3
        weights = api.SetWeightsRequest(pool="llm", weights={"canary": 30})
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await server.admin.SetWeights(weights)
        assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "only drains and their ends, shed" in error.value.details()
        status = await server.status()
        assert (status.revision, list(status.unwritten)) == (3, [2, 3])
        assert status.store_error
        disk.free(server.process.pid)
        await server.event("store_writable_again")
        status = await server.status()
        assert (status.store_error, list(status.unwritten)) == ("", [])
        assert (await server.admin.SetWeights(weights)).revision == 4
    async with served(file, disk.folder) as server:
        assert (await server.status()).revision == 4
        assert await server.draining() == ["r1"]


async def test_a_server_starts_on_a_full_disk(tmp_path, disk) -> None:
    """What was held in memory when it died is lost; drains work again at once."""
    file = tmp_path / "fleet.yaml"
    file.write_text(fleet().model_dump_json())
    async with served(file, disk.folder) as server:
        await server.drain("r1")
        disk.fill(server.process.pid)
        await server.drain("r2")
    if isinstance(disk, Limited):
        return  # the limit ended with the process
    async with served(file, disk.folder) as server:
        assert await server.draining() == ["r1"]
        await server.drain("r2")
        assert await server.draining() == ["r1", "r2"]
        disk.free(server.process.pid)
        await server.event("store_writable_again")
        assert (await server.status()).revision == 3
