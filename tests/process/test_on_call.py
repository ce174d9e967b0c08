"""The hour on call: the blocks of its page as they stand, with `tidegate up` and real Envoy."""

from __future__ import annotations

import asyncio
import re
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from support.page_shell import Shell, require, tidegate_in
from support.replicas import PATIENT
from support.sites import end
from tidegate.stack.processes.ports import HeldPorts

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("demo_extra")]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "on-call.md"
BLOCK = re.compile(r"^```(yaml|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
((KIND, FLEET), *REST) = BLOCK.findall(PAGE.read_text())
SCRIPT = [text for kind, text in REST if kind == "sh"]
ADDRESS = re.compile(r"[\d.]+:\d+")
HTTP, SECURE, PICKER = "127.0.0.1:10000", "127.0.0.1:10443", "127.0.0.1:18001"
FOLDER = "/etc/tidegate"
"""Addresses and folder of the page, in whose place the test has its own."""
READY = "/ready"


class Replica:
    """A replica that can be not ready."""

    def __init__(self) -> None:
        self.sick = False
        self.address = ""

    @asynccontextmanager
    async def serve(self):
        """Serve on a free port."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.address = f"127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await end(runner)

    async def _answer(self, request: web.Request) -> web.Response:
        await request.read()
        return web.json_response(
            {}, status=503 if self.sick and request.path.endswith(READY) else 200
        )


@pytest.fixture
async def place(tmp_path):
    """Return the page's replicas behind ``tidegate up``, and a shell that reaches it."""
    require("curl", "openssl", "bash")
    async with AsyncExitStack() as exit_:
        fleet = yaml.safe_load(FLEET)
        fleet["pickers"]["timeout"] = PATIENT
        ports = exit_.enter_context(HeldPorts())
        names = ("ads", "admin", "envoy-admin", "metrics", "picker-metrics", HTTP, SECURE, PICKER)
        free = {name: ports.address() for name in names}
        replicas = {}
        for each in fleet["pools"][0]["endpoints"]:
            made = replicas[each["id"]] = await exit_.enter_async_context(Replica().serve())
            free[each["http"]] = made.address

        def mine(block: str) -> str:
            for address in filter(ADDRESS.fullmatch, free):
                block = block.replace(address, free[address])
            return block.replace(FOLDER, str(tmp_path))

        (tmp_path / "fleet.yaml").write_text(mine(yaml.safe_dump(fleet)))
        found = tidegate_in(tmp_path)
        shell = Shell(
            tmp_path,
            {
                "PATH": f"{found.parent}:/usr/local/bin:/usr/bin:/bin",
                "TIDEGATE_SERVER": free["admin"],
                "TIDEGATE_PICKER": free["picker-metrics"],
            },
        )
        await exit_.enter_async_context(shell)
        await shell.run(mine(f"tidegate certs {FOLDER}/certs"))
        options = [w for name in names[:5] for w in (f"--{name}", free[name])]
        await exit_.enter_async_context(up(found, tmp_path, options))
        yield replicas, lambda block: shell.run(mine(block))


@asynccontextmanager
async def up(program, folder, options):
    """Run ``tidegate up`` until it serves; stop it at the end."""
    process = await asyncio.create_subprocess_exec(
        *(str(program), "up", "-f", "fleet.yaml", *options),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said = b""
        while b"up: HTTP and gRPC at" not in said:
            line = await process.stdout.readline()
            assert line, said
            said += line
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.communicate()


async def test_the_hour_passes_with_nothing_but_the_page(place):
    """Find a sick replica, see why, drain, canary, roll back, rotate certificates."""
    replicas, run = place
    sick = replicas["r2"]
    sick.sick = True
    await run("until tidegate get endpoints | grep -q 'not ready'; do sleep 0.5; done")
    said = ""
    for block in SCRIPT:
        if "undrain" in block:
            sick.sick = False
        said += await run(block)
    assert "DEGRADED: " in said
    assert "exit code 1" in said
    assert said.rstrip().endswith("all is well\n--- done")
