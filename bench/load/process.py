"""Execution of the load process by a suite."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.load.plan import LoadPlan, Results, read_results, write_plan
from tidegate.stack.processes.spawning import service_environment
from tidegate_common.children import module_command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

GRACE_S = 60.0


class LoadError(RuntimeError):
    """The load process failed; the message contains the end of its output."""


async def run_load(
    plan: LoadPlan, on_start: Callable[[], Awaitable[None]] | None = None
) -> Results:
    """Run one plan in a child process.

    Args:
        plan: The plan.
        on_start: Started together with the load, for example to inject a fault; cancelled if the
            load ends first.

    Raises:
        LoadError: The process failed.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        plan_file, results = Path(folder) / "plan", Path(folder) / "results"
        write_plan(plan_file, plan)
        process = await asyncio.create_subprocess_exec(
            *module_command("bench.load", str(plan_file), str(results)),
            env=service_environment(),
            stderr=asyncio.subprocess.PIPE,
        )
        beside = None if on_start is None else asyncio.ensure_future(on_start())
        try:
            span = max(plan.seconds, plan.at[-1] if plan.at else 0.0)
            async with asyncio.timeout(span + plan.timeout_s + GRACE_S):
                _, stderr = await process.communicate()
            if process.returncode != 0:
                raise LoadError(stderr.decode("utf-8", "replace")[-2000:])
            return read_results(results)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            if beside is not None:
                beside.cancel()
                await asyncio.gather(beside, return_exceptions=True)
