"""A shell that runs the commands of a page of the documentation as they stand."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Self

import pytest

if TYPE_CHECKING:
    from pathlib import Path

BLOCK_S = 150.0


def require(*programs: str) -> None:
    """Skip the test where a program that its page calls is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"the page calls {program}")


def tidegate_in(folder: Path) -> Path:
    """Write the program ``tidegate`` of this environment into a folder; return its path."""
    found = folder / "bin" / "tidegate"
    found.parent.mkdir()
    path = shlex.quote(os.environ.get("PYTHONPATH", ""))
    module = shlex.join((sys.executable, "-P", "-m", "tidegate"))  # by name it would call itself
    called = f'PYTHONPATH={path} exec {module} "$@"'
    found.write_text(f"#!/bin/sh\n{called}\n")
    found.chmod(0o755)
    return found


class Shell:
    """A shell that runs the page's blocks one after the other, and stops at the first failure."""

    def __init__(self, folder: Path, more: dict[str, str]) -> None:
        self._folder = folder
        self._more = more
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(shutil.which("bash"), "--noprofile", "--norc", "-eu", "-o", "pipefail"),
            cwd=self._folder,
            env={"HOME": str(self._folder), **self._more},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.stdin.close()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def run(self, block: str) -> str:
        """Run a block and return what it printed."""
        self._process.stdin.write(f"{block}\necho '--- done'\n".encode())
        said = b""
        async with asyncio.timeout(BLOCK_S):
            while not said.endswith(b"--- done\n"):
                line = await self._process.stdout.readline()
                assert line, f"{block}\nfailed; it printed:\n{said.decode()}"
                said += line
        return said.decode()
