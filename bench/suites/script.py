"""Execution of a benchmark script in a child process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from tidegate.stack.processes.spawning import service_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).resolve().parents[2]


class ScriptError(RuntimeError):
    """A script failed; the message contains its name and the end of its output."""


async def output(script: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run ``bench/SCRIPT`` and return its output.

    Args:
        script: Path of the script below ``bench``.
        arguments: Its arguments.
        environment: Additional environment variables.

    Raises:
        ScriptError: The script failed.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "bench" / script), *arguments),
        env={**service_environment(), **(environment or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        stdout, stderr = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise ScriptError(f"{script}: {stderr.decode('utf-8', 'replace').strip()[-1000:]}")
    return stdout.decode()


async def json_lines(
    script: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Run ``bench/SCRIPT`` (see `output`) and return the JSON objects it prints, one per line.

    Raises:
        ScriptError: The script failed.
    """
    text = await output(script, *arguments, environment=environment)
    return [orjson.loads(line) for line in text.splitlines() if line.startswith("{")]
