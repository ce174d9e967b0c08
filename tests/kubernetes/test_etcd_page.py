"""The page's copy of etcd: its commands as they stand, on a real etcd under two control servers.

Run by ``make test-kubernetes ARGS="-k etcd_page"``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from kubernetes.binaries import built
from kubernetes.etcd import EtcdCluster
from support.page_shell import Shell, require, tidegate_in
from support.traffic import eventually

pytestmark = pytest.mark.timeout(300)

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "high-availability.md").read_text()
BLOCK = re.compile(r"^```(?:yaml|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CERTIFICATES, FLEET, CONTROL, _, _, _, SAVE, RESTORE = BLOCK.findall(PAGE)
(STORE,) = re.findall(r"`(etcd://[^`]+)`", PAGE)
OPERATOR = (
    "--server 10.0.0.1:18010 --tls-cert /etc/tidegate/certs/operator/tls.crt"
    " --tls-key /etc/tidegate/certs/operator/tls.key"
)
FLEET_IN_FORCE = f"tidegate get fleet {OPERATOR} || true"
STARTS_S = 120.0


@pytest.fixture
async def cluster(tmp_path):
    """Start three members."""
    async with EtcdCluster(tmp_path, 3) as running:
        yield running


class Hosts:
    """Control servers of the page's hosts.

    Args:
        shell: Runs commands.
        own: Addresses and paths of the page, and those in their place.
    """

    def __init__(self, shell: Shell, own: dict[str, str]) -> None:
        self._shell = shell
        self._own = own
        self._pids: list[str] = []

    def mine(self, text: str) -> str:
        """Return a text of the page with this test's addresses."""
        for written, used in self._own.items():
            text = text.replace(written, used)
        return text

    async def run(self, text: str) -> str:
        """Run a block."""
        return await self._shell.run(self.mine(text))

    async def start(self, number: int, more: str = "") -> None:
        """Start a host's control server."""
        block = CONTROL.replace("--state state", f"--state state-{number} --store {STORE} {more}")
        block = re.sub(r"(--ads|--admin) 10\.0\.0\.1", rf"\1 10.0.0.{number}", block)
        page = f"--metrics 10.0.0.{number}:18080"  # both hosts are this one
        logged = f" {page} >>log-{number} 2>&1 & echo pid=$!"
        block = re.sub(r" &$", logged, block, flags=re.MULTILINE)
        self._pids += re.findall(r"pid=(\d+)", await self.run(block))

    async def kill(self) -> None:
        """Kill all."""
        for pid in self._pids:
            await self.run(f"kill -9 {pid} || true; wait {pid} || true")
        self._pids.clear()

    def end(self) -> None:
        """Kill all, where the shell may have ended."""
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):  # what has failed says so in its log
                os.kill(int(pid), signal.SIGKILL)

    async def said(self, text: str) -> bool:
        """Return whether the first one has logged a text."""
        return text in await self.run("cat log-1")


async def test_a_copy_of_etcd_is_restored_as_the_page_says(tmp_path, cluster) -> None:
    """It is older than what the servers have read, which refuse it until the loss is accepted."""
    require("openssl", "bash")
    program = tidegate_in(tmp_path)
    for name in ("etcdctl", "etcdutl"):
        (program.parent / name).symlink_to(built(name))
    own = {
        **{f"10.0.0.{n}:2379": each for n, each in enumerate(cluster.clients, 1)},
        **{f"http://10.0.0.{n}:2380": each for n, each in enumerate(cluster.peers, 1)},
        "/etc/tidegate": str(tmp_path),
        **{f"10.0.0.{n}": f"127.{os.getpid() % 200 + 20}.8.{n}" for n in (1, 2)},
    }
    path = f"{program.parent}:/usr/local/bin:/usr/bin:/bin"
    async with Shell(tmp_path, {"PATH": path}) as shell:
        hosts = Hosts(shell, own)
        (tmp_path / "fleet.yaml").write_text(hosts.mine(FLEET))
        await hosts.run(CERTIFICATES)

        async def leads() -> bool:
            return "r1" in await hosts.run(FLEET_IN_FORCE)

        async def refuses() -> bool:
            return await hosts.said("is older than what this server has read")

        try:
            await hosts.start(1)
            await hosts.start(2)
            assert await eventually(leads, STARTS_S), await hosts.run("cat log-1 log-2")
            await hosts.run(SAVE)
            await hosts.run(f"tidegate drain r1 --no-wait {OPERATOR}")
            assert "draining: true" in await hosts.run(FLEET_IN_FORCE)
            await hosts.kill()
            for each in cluster.members:
                each.stop()
            for number, each in enumerate(cluster.members, 1):
                shutil.rmtree(cluster.data(number))
                block = RESTORE.replace("/var/lib/etcd", str(cluster.data(number)))
                block = block.replace("--name etcd-1", f"--name etcd-{number}")
                urls = "--initial-advertise-peer-urls http://10.0.0."
                await hosts.run(block.replace(f"{urls}1", f"{urls}{number}"))
                each.start()
            await hosts.start(1)
            assert await eventually(refuses, STARTS_S), await hosts.run("cat log-1")
            await hosts.kill()
            await hosts.start(1, "--accept-loss")
            await hosts.start(2, "--accept-loss")
            assert await eventually(leads, STARTS_S), await hosts.run("cat log-1 log-2")
            assert "draining: true" not in await hosts.run(FLEET_IN_FORCE)
        finally:
            hosts.end()
