"""The units of a bare host: systemd takes them, and their commands make a working system."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import aiohttp
import pytest
import yaml

from support.replicas import PATIENT, Replica
from support.traffic import GENERATE, eventually, fresh_prompt
from support.units import ENVOY, FOLDER, PLACES, PROGRAM, UNITS, Unit, placed
from tidegate.stack.envoy import envoy_binary, envoy_environment
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.supervisor import Supervisor
from tidegate_common.children import module_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_EXPOSED = 16
"""Bound of `systemd-analyze security`, in tenths: 0 is safest, 100 the most exposed."""
STARTED = ("tidegate-control", "tidegate-picker@", "tidegate-gateway", "tidegate-envoy")
"""In the order of their start; they stop in the reverse order."""
PAUSE = "--pause=0.5"
"""In place of the unit's, in which clients learn of the stop: the test waits for its own events."""

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def analyze(tmp_path) -> Iterator[tuple[str, list[str]]]:
    """Return systemd's program for checks, and copies of the units whose programs exist."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("the systemd-analyze command is not installed")
    for name in UNITS:
        text = (FOLDER / name).read_text().replace(PROGRAM, "/bin/true").replace(ENVOY, "/bin/true")
        tmp_path.joinpath(name.replace("@.", "@1.")).write_text(text)
    return program, [str(each) for each in sorted(tmp_path.glob("*.service"))]


def test_systemd_takes_the_units_and_finds_them_closed(analyze) -> None:
    """Every setting is known, and the exposure of each is at most 1.6 of 10."""
    program, files = analyze
    taken = subprocess.run([program, "verify", *files], capture_output=True, text=True, check=False)
    assert (taken.returncode, taken.stderr) == (0, "")
    command = [program, "security", "--offline=true", f"--threshold={MOST_EXPOSED}", *files]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("Overall exposure level") == len(UNITS)


class Host:
    """A bare host: its units run as processes."""

    def __init__(self, folder: Path, supervisor: Supervisor) -> None:
        self.root, self.supervisor = folder, supervisor
        draw = random.SystemRandom()
        self.address = f"127.{draw.randrange(64, 250)}.{draw.randrange(1, 250)}.9"
        for place in PLACES:
            (folder / place[1:]).mkdir(parents=True)
        self.program = folder / "tidegate"
        self.program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m tidegate "$@"\n')
        self.program.chmod(0o700)
        ports = {"http": 18020, "grpc": 18021, "admin": 18022, "admin-grpc": 18023}
        extra = " ".join(f"--{name}={self.address}:{port}" for name, port in ports.items())
        (folder / "etc/tidegate/gateway.env").write_text(f'EXTRA="{extra}"\n')

    def write_fleet(self, replica: Replica) -> None:
        """Write the fleet file: one replica, and the addresses that the units have."""
        fleet = {
            "listener": {"address": f"{self.address}:10000"},
            "pickers": {"addresses": [f"{self.address}:18001"], "timeout": PATIENT},
            "gateway": {"http": [f"{self.address}:18020"], "grpc": [f"{self.address}:18021"]},
            "pools": [
                {
                    "name": "llm",
                    "default": True,
                    "match": {"models": ["toy-llm"]},
                    "endpoints": [replica.endpoint()],
                    "health": {"timeout": PATIENT},
                }
            ],
        }
        (self.root / "etc/tidegate/fleet.yaml").write_text(yaml.safe_dump(fleet))

    async def run(self, unit: Unit, key: str, name: str) -> None:
        """Run a command of a unit to its end, with success."""
        await self.start(unit, key, name)
        self.supervisor.expect_end(name)
        child = self.supervisor._children[name]
        await child.watch
        assert child.process.returncode == 0, self.supervisor.log(name).read_text()

    async def start(self, unit: Unit, key: str, name: str) -> None:
        """Start a command of a unit."""
        given = {
            k: placed(v, self.root, self.address) for k, v in unit.environment(self.root).items()
        }
        words = [placed(each, self.root, self.address) for each in unit.words(key, given)]
        words = [PAUSE if each.startswith("--pause=") else each for each in words]
        command, env = tuple(words), service_environment() | given
        if words[0] == PROGRAM:
            command, env = module_command("tidegate", *words[1:]), service_environment()
        elif words[0] == ENVOY:
            command, env = (str(envoy_binary()), *words[1:]), envoy_environment()
        else:
            command = tuple(each.replace(PROGRAM, str(self.program)) for each in words)
        await self.supervisor.start(name, command, env)


@pytest.mark.usefixtures("demo_extra")
async def test_the_units_commands_serve_and_stop_without_cutting_an_answer(tmp_path) -> None:
    """Started in their order and stopped in the reverse one, with a request in flight."""
    units = {name: Unit(f"{name}.service") for name in STARTED}
    replica = Replica("r1")
    async with AsyncExitStack() as exit_:
        await exit_.enter_async_context(replica.serve())
        (tmp_path / "logs").mkdir()
        supervisor = Supervisor(tmp_path / "logs")
        exit_.push_async_callback(supervisor.stop)
        host = Host(tmp_path, supervisor)
        host.write_fleet(replica)
        for name, unit in units.items():
            if unit.settings["ExecStartPre"]:
                await host.run(unit, "ExecStartPre", f"{name}-pre")
            await host.start(unit, "ExecStart", name)
        http = await exit_.enter_async_context(aiohttp.ClientSession())

        async def ask(method: str, path: str) -> int:
            try:
                body = {"text_input": fresh_prompt(), "max_tokens": 1}
                url = f"http://{host.address}:10000{path}"
                async with http.request(method, url, json=body) as answer:
                    await answer.read()
                    return answer.status
            except aiohttp.ClientConnectorError:
                return 0

        async def serves() -> bool:
            return (await ask("POST", GENERATE), await ask("GET", "/v2")) == (200, 200)

        async def refuses() -> bool:
            return await ask("GET", "/v2") == 0

        async def asked() -> bool:
            return replica.at_once == 1

        assert await eventually(serves), [
            path.read_text() for path in (tmp_path / "logs").iterdir()
        ]
        replica.gate = asyncio.Event()
        last = asyncio.create_task(ask("POST", GENERATE))
        assert await eventually(asked)
        stop = asyncio.create_task(host.run(units["tidegate-envoy"], "ExecStop", "stop"))
        assert await eventually(refuses)
        replica.gate.set()
        await stop
        for name in reversed(STARTED):
            await supervisor.kill(name, signal.SIGTERM)
        assert await last == 200
