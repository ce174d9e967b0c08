"""Two hosts: the commands of their page as they stand, and what each loss costs.

The hosts are addresses of the loopback network; both Envoys listen on one port.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml
from aiohttp import ClientSession

from bench.load.upstream import instant_upstreams
from support.page_shell import Shell, require, tidegate_in
from support.replicas import PATIENT
from support.traffic import Traffic, eventually, fresh_prompt
from tidegate.stack.envoy import envoy_binary
from tidegate.stack.processes.ports import HeldPorts

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("demo_extra")]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "high-availability.md"
BLOCK = re.compile(r"^```(yaml|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CERTIFICATES, FLEET, CONTROL, EACH, LOOK, BACKUP, *_ = (
    text for _, text in BLOCK.findall(PAGE.read_text())
)
LISTENER, REPLICAS = "0.0.0.0:10000", ("10.0.0.5:8000", "10.0.0.6:8000")
HOSTS = ("10.0.0.1", "10.0.0.2")
GENERATE = "/v2/models/toy-llm/generate"
STARTS_S = 180.0
"""Within this time the control server, which is started first, has read its modules."""


class Hosts:
    """Both hosts of the page.

    Args:
        shell: Runs commands.
        own: Addresses of the page, and those in their place.
    """

    def __init__(self, shell: Shell, own: dict[str, str]) -> None:
        self._shell = shell
        self._own = own
        self.listener = own[LISTENER]
        self._pids: dict[str, int] = {}

    def mine(self, text: str) -> str:
        """Return a text of the page with this test's addresses."""
        for address, own in self._own.items():
            text = text.replace(address, own)
        return text

    async def run(self, block: str) -> str:
        """Run a block."""
        return await self._shell.run(self.mine(block))

    async def start(self, block: str, *names: str, number: int = 1) -> None:
        """Start a block's services in their order, as those of a host."""
        if number == 2:  # the first host keeps the control server
            block = re.sub(r"(picker|envoy)-1\b", r"\1-2", block)
            block = re.sub(
                r"(--listen|--metrics|--group-listen) 10\.0\.0\.1", r"\1 10.0.0.2", block
            )
            block = block.replace(":19001", ":19002")
        lines = re.sub(r" &$", f" >>log-{number} 2>&1 & echo pid=$!", block, flags=re.MULTILINE)
        found = re.findall(r"pid=(\d+)", await self.run(lines))
        self._pids.update(zip(names, map(int, found), strict=True))

    async def kill(self, name: str) -> None:
        """Kill a service, and wait until its ports are closed."""
        pid = self._pids.pop(name)
        await self._shell.run(f"kill -9 {pid}; wait {pid} || true")

    def end(self) -> None:
        """Kill all."""
        for pid in self._pids.values():
            with contextlib.suppress(ProcessLookupError):  # what has failed says so in its log
                os.kill(pid, signal.SIGKILL)

    async def said(self) -> str:
        """Return the status, and the ends of the services' logs."""
        return await self.status() + await self.run("tail -n 20 log-1 log-2")

    async def listed(self, *pickers: str) -> bool:
        """Return whether the control server lists these pickers last."""
        said = await self.run("grep group_listed log-1 || true")
        lines = [each for each in said.splitlines() if "group_listed" in each]
        return bool(lines) and repr(list(pickers)) in lines[-1]

    async def status(self) -> str:
        """Return what the page's command says."""
        line = next(each for each in LOOK.splitlines() if "status" in each)
        return await self.run(f"{line} || true")


@pytest.fixture
async def hosts(tmp_path):
    """Start what the page starts."""
    require("curl", "openssl", "bash")
    async with AsyncExitStack() as exit_:
        ports = exit_.enter_context(HeldPorts())
        program = tidegate_in(tmp_path)
        (program.parent / "envoy").symlink_to(envoy_binary())
        replicas = await exit_.enter_async_context(instant_upstreams(2))
        net = f"127.{os.getpid() % 200 + 20}.7"
        listener = ports.address()
        own = {
            LISTENER: listener,
            f"{HOSTS[0]}:10000": listener,
            **dict(zip(REPLICAS, replicas, strict=True)),
            **{f"127.0.0.1:1900{n}": ports.address() for n in (1, 2)},
            "/etc/tidegate": str(tmp_path),
            "/run/": f"{tmp_path}/",
            **{host: f"{net}.{n}" for n, host in enumerate(HOSTS, 1)},
        }
        path = f"{program.parent}:/usr/local/bin:/usr/bin:/bin"
        shell = await exit_.enter_async_context(Shell(tmp_path, {"PATH": path}))
        started = Hosts(shell, own)
        exit_.callback(started.end)
        fleet = yaml.safe_load(FLEET)
        fleet["pickers"]["timeout"] = PATIENT
        fleet["pools"][0]["health"] = {"timeout": PATIENT}
        (tmp_path / "fleet.yaml").write_text(started.mine(yaml.safe_dump(fleet)))
        await started.run(CERTIFICATES)
        await started.start(CONTROL, "control")
        await started.start(EACH, "picker-1", "envoy-1")
        await started.start(EACH, "picker-2", "envoy-2", number=2)
        yield started


async def test_the_loss_of_a_part_costs_what_the_page_says(hosts):
    """A picker or the control server: no request; one Envoy serves without the other."""
    url = f"http://{hosts.listener}{GENERATE}"

    def body():
        return {"text_input": fresh_prompt(500), "max_tokens": 1}

    async def whole():
        said = await hosts.status()
        return "OK" in said.splitlines()[0] and all(f"envoy-{n}" in said for n in (1, 2))

    async def both():
        return await hosts.listed("picker-1", "picker-2")

    async def one():
        return await hosts.listed("picker-1")

    assert await eventually(whole, STARTS_S), await hosts.said()
    assert await eventually(both), await hosts.said()
    assert "{}" in await hosts.run(LOOK.splitlines()[0])
    async with ClientSession() as http, Traffic(http, url, body, pause_s=0.02) as traffic:
        await traffic.more(40)
        await hosts.kill("picker-2")
        await traffic.more(200)
        assert await eventually(one), await hosts.said()
        await hosts.kill("control")
        await traffic.more(200)
    assert traffic.failures == []
    await hosts.run(BACKUP)
    await hosts.start(CONTROL, "control")
    await hosts.kill("envoy-2")
    async with ClientSession() as http, Traffic(http, url, body, pause_s=0.02) as traffic:
        await traffic.more(40)
    assert traffic.failures == []

    async def back():
        said = await hosts.status()
        return "envoy-1" in said and "picker-1" in said

    assert await eventually(back), await hosts.said()
