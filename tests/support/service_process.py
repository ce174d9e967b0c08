"""A picker or a gateway in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal

from support.control_process import piped
from tidegate_common.children import module_command


@contextlib.asynccontextmanager
async def running(module, started, **options):
    """Run a service; yield the event of its start, with its ``pid``, and all its events.

    It is killed at the end.
    """
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    process, lines = await piped(module_command(module, "--log-format", "json", *words))
    events: list[dict] = []
    up = asyncio.Event()

    async def read() -> None:
        async for line in lines:
            with contextlib.suppress(ValueError):
                events.append(json.loads(line))
                if events[-1]["event"] == started:
                    up.set()

    reading = asyncio.create_task(read())
    try:
        async with asyncio.timeout(60):
            await up.wait()
        first = next(each for each in events if each["event"] == started)
        yield {**first, "pid": process.pid}, events
    finally:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        await reading


@contextlib.asynccontextmanager
async def picker_and_gateway(ads):
    """Run one of each at a control server; yield for both what ``running`` yields."""
    free = {"metrics": "127.0.0.1:0", "xds": ads}
    ports = dict.fromkeys(("http", "grpc", "admin", "admin-grpc"), "127.0.0.1:0")
    async with (
        running("ext_proc", "picker_started", listen="127.0.0.1:0", id="p", **free) as picker,
        running("gateway", "gateway_started", id="g", **ports, **free) as gateway,
    ):
        yield picker, gateway


def ready_models(state):
    """Return what a picker knows READY, by replica: its ``/debug/state``."""
    return {
        replica: {
            model
            for model, versions in (listing or {"models": {}})["models"].items()
            if any(each["state"] == "READY" for each in versions.values())
        }
        for replica, listing in state["probing"]["placement"].items()
    }
