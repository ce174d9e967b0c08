"""The parent with real processes: common stop, restart, and addresses in use."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from ext_proc.settings import PickerSettings
from ext_proc.workers import parent
from ext_proc.workers.parent import WorkerSupervisor
from tidegate.stack.processes.ports import HeldPorts

CLOSED_PORT = "127.0.0.1:1"


@asynccontextmanager
async def workers(listen: str, metrics: str, *more: str):
    """Run two workers without a control server."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "ext_proc", "--workers", "2", "--listen", listen, "--metrics", metrics),
        *("--xds", CLOSED_PORT, "--id", "p", "--log-format", "json", *more),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(150):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def event(process, name: str) -> dict:
    """Return the next log line of an event."""
    while line := await process.stderr.readline():
        entry = json.loads(line) if line.startswith(b"{") else {"event": "gRPC's own line"}
        if entry["event"] == name:
            return entry
    raise AssertionError(f"the log ended before {name}")


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def number(http: aiohttp.ClientSession, page: str) -> int:
    """Return the number of a worker, read from its state page."""
    async with http.get(f"http://{page}/debug/state") as answer:
        return (await answer.json())["workers"]["worker"]


async def test_a_dead_worker_is_started_again_and_all_stop_together():
    """A killed worker comes back in its place; SIGTERM ends all with 0 and leaves no socket."""
    with HeldPorts() as ports:
        pages = (ports.address(), ports.address())
        listen = f"{ports.address()},{ports.address()}"
        async with (
            workers(listen, ",".join(pages)) as process,
            aiohttp.ClientSession() as http,
        ):
            for _ in pages:
                await event(process, "picker_started")
            first = children(process.pid)
            assert len(first) == 2
            os.kill(first[0], signal.SIGKILL)
            assert (await event(process, "worker_ended"))["code"] == -signal.SIGKILL
            await event(process, "picker_started")
            assert len(set(children(process.pid)) - set(first)) == 1
            assert [await number(http, page) for page in pages] == [0, 1]
            process.send_signal(signal.SIGTERM)
            assert (await event(process, "workers_stopped"))["code"] == 0
            assert await process.wait() == 0


async def test_a_stop_while_workers_start_is_a_proper_one():
    """They end by the signal, as they serve nothing yet."""
    with HeldPorts() as ports:
        listen, metrics = (f"{ports.address()},{ports.address()}" for _ in range(2))
        async with workers(listen, metrics, "--drain", "0") as process:
            await event(process, "workers_starting")
            process.send_signal(signal.SIGTERM)
            assert (await event(process, "workers_stopped"))["code"] == 0
            assert await process.wait() == 0


async def test_workers_end_with_their_parent():
    """A killed parent leaves no worker behind."""
    with HeldPorts() as ports:
        listen, metrics = (f"{ports.address()},{ports.address()}" for _ in range(2))
        async with workers(listen, metrics, "--drain", "0") as process:
            for _ in range(2):
                await event(process, "picker_started")
            process.kill()
            # Its log ends when the last one that writes to it has ended.
            await process.stderr.read()


async def test_a_taken_address_ends_all_with_2():
    """One worker that cannot listen is the whole picker's usage error."""
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    host, port = taken.sockets[0].getsockname()
    try:
        with HeldPorts() as ports:
            metrics = f"{ports.address()},{ports.address()}"
            async with workers(f"{ports.address()},{host}:{port}", metrics) as process:
                entry = await event(process, "cannot_start")
                assert f"cannot listen on {host}:{port}" in entry["reason"]
                await process.stderr.read()
                assert await process.wait() == 2
    finally:
        taken.close()
        await taken.wait_closed()


async def test_a_usage_error_after_a_slow_start_ends_all_with_2(tmp_path, monkeypatch):
    """On a busy machine the imports alone take longer than a life that counts."""
    monkeypatch.setattr(parent, "LIVED_S", 0.0)
    # Its own usage error is 2, too.
    supervisor = WorkerSupervisor(tmp_path, [PickerSettings()], grace_s=1.0, module="json.tool")
    async with asyncio.timeout(150):
        assert await supervisor.run() == 2
