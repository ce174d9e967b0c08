"""The control server on a disk that is full or read-only: drains work, and are written later."""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
from pathlib import Path

import grpc
import pytest

from support.control_process import served
from support.fleets import fleet
from tidegate_api.admin.v1 import admin_pb2 as api
from xds_server.fleet.store import FILE_NAME


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


@pytest.fixture
def mounted(tmp_path):
    """Return a folder that is a mount of its own, and a function that makes it read-only or not."""
    folder = tmp_path / "state"
    folder.mkdir()
    mount = shutil.which("mount") or "mount"
    if subprocess.run(
        [mount, "--bind", folder, folder], check=False, capture_output=True
    ).returncode:
        pytest.skip("nothing can be mounted here")

    def remount(how: str) -> None:
        subprocess.run([mount, "-o", f"remount,{how},bind", folder], check=True)

    try:
        yield folder, remount
    finally:
        subprocess.run([shutil.which("umount") or "umount", folder], check=True)


async def test_a_server_starts_in_a_read_only_folder(tmp_path, mounted) -> None:
    """From what is stored there, after a kill too, and although the fleet file was edited since."""
    folder, remount = mounted
    file = tmp_path / "fleet.yaml"
    file.write_text(fleet().model_dump_json())
    async with served(file, folder) as server:
        await server.drain("r1")
    remount("ro")
    file.write_text(fleet(waves=True).model_dump_json())
    async with served(file, folder) as server:
        status = await server.status()
        assert "is read-only" in status.store_error
        assert "is read-only" in status.file_error
        await server.drain("r2")
        assert await server.draining() == ["r1", "r2"]
        remount("rw")
        await server.event("store_writable_again")
        assert list((await server.status()).unwritten) == []
    async with served(file, folder) as server:
        assert await server.draining() == ["r1", "r2"]


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
