"""``up`` and its parts really run from a folder that holds packages of our names."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from bench.load.upstream import instant_upstreams
from support.hostile import TIDEGATE, fill
from support.replicas import PATIENT
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.waiting import http_ok, wait_until
from tidegate.stack.tritons.fleet import Tritons

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("demo_extra")]


def children(pid: int) -> list[int]:
    """Return the children of a process, the oldest first."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@asynccontextmanager
async def tidegate(folder, *arguments):
    """Run the console script in a folder; it is asked to stop at the end."""
    process = await asyncio.create_subprocess_exec(
        *(TIDEGATE, *arguments),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        said, _ = await process.communicate()
        assert b"was imported" not in said, said


@pytest.fixture
async def place(tmp_path):
    """Return a hostile folder with a fleet file for a picker of two workers, and free addresses."""
    async with instant_upstreams(1) as upstreams:
        with HeldPorts() as ports:
            names = ("listener", "ads", "admin", "envoy", "page", "page 1", "page 2")
            free = {name: ports.address() for name in names}
            fleet = {
                "listener": {"address": free["listener"]},
                "pickers": {"addresses": [ports.address(), ports.address()], "timeout": PATIENT},
                "pools": [
                    {
                        "name": "llm",
                        "default": True,
                        "match": {"models": ["toy-llm"]},
                        "endpoints": [{"id": "u1", "http": upstreams[0]}],
                    }
                ],
            }
            (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet))
            yield fill(tmp_path), free


async def test_up_runs(place, http):
    """Control server, picker with two workers and Envoy come up, serve, and are kept running.

    A part that is killed is started again, and a second ``up`` finds the first.
    """
    folder, free = place
    command = (
        *("up", "-f", "fleet.yaml", "--ads", free["ads"], "--admin", free["admin"]),
        *("--envoy-admin", free["envoy"], "--metrics", free["page"]),
        *("--picker-metrics", f"{free['page 1']},{free['page 2']}"),
    )

    async def said(process, words):
        lines = b""
        while words not in lines:
            line = await process.stdout.readline()
            assert line, lines
            lines += line

    async with tidegate(folder, *command) as process:
        await said(process, b"up: HTTP and gRPC at")
        url = f"http://{free['listener']}/v2/models/toy-llm"
        async with http.get(url) as answer:
            assert answer.status == 200
        async with tidegate(folder, *command) as second:
            await said(second, f"runs at {free['admin']} already".encode())
            assert await second.wait() == 1
        parts = ("control-server", "picker", "envoy")  # in the order in which they start
        for part, pid in zip(parts, children(process.pid), strict=True):
            os.kill(pid, signal.SIGKILL)
            await said(process, f"{part} was killed by signal 9".encode())
            if part != "envoy":  # neither is in the path of an answer
                async with http.get(url) as answer:
                    assert answer.status == 200
        await wait_until(
            lambda: http_ok(http, url), "Envoy, started again", timeout_s=90, supervisors=()
        )
        status = ("status", "--server", free["admin"], "-o", "json")
        while True:
            async with tidegate(folder, *status) as shown:
                seen = json.loads(await shown.stdout.read() or "{}")
            if {client["kind"] for client in seen.get("clients", ())} == {"envoy", "picker"}:
                break


async def test_a_triton_runs(tmp_path, monkeypatch):
    """Its Python stubs look into the current folder; that is not the caller's."""
    monkeypatch.chdir(fill(tmp_path))
    async with Tritons(1) as running:
        assert [replica.name for replica in running.replicas] == ["r1"]
        await running.kill("r1")
        await running.restart("r1")
