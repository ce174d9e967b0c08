"""Lines that the demo and ``up`` print can be pasted: a shell takes them as they stand."""

from __future__ import annotations

import asyncio
import io
import re
import shlex
import shutil

import pytest
from rich.console import Console

from support.traffic import eventually
from tidegate.demo.clients import Clients
from tidegate.demo.live import commands, stay
from tidegate.demo.operator import Operator
from tidegate.demo.scene import Scene, page_session
from tidegate.terminal.output import command_line

pytestmark = pytest.mark.timeout(120)

PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where no program of a virtual environment is, also if that of the tests is activated."""


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Run text in a new shell, in a folder with a space, that has no virtual environment."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    for name in ("VIRTUAL_ENV", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", PATH)

    async def run(text: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(shutil.which("bash"), "--noprofile", "--norc", "-e"),
            cwd=folder,
            env={"PATH": PATH, "HOME": str(folder)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate(text.encode())
        return process.returncode, said.decode()

    return run


async def test_the_demo_s_lines_can_be_pasted(new_stack, shell):
    """Each request is answered and each command succeeds, in any folder and without activation."""
    if shutil.which("curl") is None:
        pytest.skip("the lines call curl")
    stack = await new_stack()
    code, said = await shell(commands(stack))
    assert code == 0, said
    assert said.count('"model_name":"toy-llm"') >= 2, said
    assert "envoy-1" in said
    assert "canary weight" in said
    assert "endpoint r1" in said


async def test_the_demo_keeps_a_trickle_of_requests(new_stack):
    """Its pages have news while it stays up, and it says at the end what became of the requests."""
    stack = await new_stack()
    printed = io.StringIO()
    stop = asyncio.Event()
    async with (
        Clients(stack.http_url, stack.grpc_address) as clients,
        Operator(stack.admin_address) as operator,
        page_session() as pages,
    ):
        scene = Scene(stack, clients, operator, pages, requests=1000)
        before = await scene.counts()

        async def served():
            now = await scene.counts()
            counts = [now[each].since(before[each]).served for each in now]
            # A request counts before it is answered, and one is in flight at a time.
            return sum(count for each in counts for count in each.values()) >= 4

        staying = asyncio.create_task(stay(Console(file=printed), scene, stop))
        assert await eventually(served)
        stop.set()
        await staying
    answered = re.search(r"a trickle of requests: (\d+) answered$", printed.getvalue().strip())
    assert answered is not None, printed.getvalue()
    assert int(answered[1]) >= 3


async def test_the_command_line_is_found_without_activation(shell):
    """Where the environment's folder is not on the PATH the program is named in full."""
    code, said = await shell(f"{shlex.join(command_line())} --version")
    assert code == 0, said
    assert said.startswith("tidegate ")
