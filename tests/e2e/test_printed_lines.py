"""Lines that the demo and ``up`` print can be pasted: a shell takes them as they stand."""

from __future__ import annotations

import asyncio
import shlex
import shutil

import pytest

from tidegate.demo.live import commands
from tidegate.terminal.output import command_line

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Run text in a new shell, in a folder with a space, that has no virtual environment."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    for name in ("VIRTUAL_ENV", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)

    async def run(text: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *(shutil.which("bash"), "--noprofile", "--norc", "-e"),
            cwd=folder,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)},
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


async def test_the_command_line_is_found_without_activation(shell):
    """Where the environment's folder is not on the PATH the program is named in full."""
    code, said = await shell(f"{shlex.join(command_line())} --version")
    assert code == 0, said
    assert said.startswith("tidegate ")
