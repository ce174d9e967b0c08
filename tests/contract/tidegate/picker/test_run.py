"""``tidegate picker --fleet``: a whole picker without a control server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys

import aiohttp
import grpc
import pytest

from ext_proc.server.wire import METHOD, SERVICE
from support.fleets import endpoint, pool
from support.streams import MODE, Answer, Messages
from tidegate.picker.run import SEED_VARIABLE
from tidegate.stack.processes.ports import HeldPorts
from tidegate_common.children import child_environment


async def started(fleet, *options):
    """Start it; return the process and its log's first line."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidegate", "picker", "--fleet", str(fleet)),
        *("--metrics", "127.0.0.1:0", "--id", "p", "--log-format", "json", *options),
        stderr=asyncio.subprocess.PIPE,
        env=child_environment(),
    )
    while (line := await process.stderr.readline()) and not line.startswith(b"{"):
        pass
    return process, json.loads(line)


async def ready(page):
    """Wait until the picker is ready."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(120):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with session.get(f"http://{page}/healthz") as answer:
                    if answer.status == 200:
                        break
            await asyncio.sleep(0.05)
        async with session.get(f"http://{page}/debug/state") as answer:
            return await answer.json()


async def test_it_picks_without_a_control_server(tmp_path):
    """It becomes ready, serves generic proxies, and ends with 0 on a signal."""
    file = tmp_path / "fleet.yaml"
    pools = [pool(variants=[{"name": "stable"}], endpoints=[endpoint(1), endpoint(2)])]
    file.write_text(json.dumps({"pools": pools}))
    async with asyncio.timeout(120):
        process, line = await started(file, "--listen", "127.0.0.1:0", "--destinations", "one")
        assert (line["event"], line["xds"]) == ("picker_started", f"file {file}")
        state = await ready(line["metrics"])
        assert state["fleet"]["pools"] == ["llm"]
        async with grpc.aio.insecure_channel(line["listen"]) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
            messages = Messages(cluster=None, route=None, mode=MODE.NONE)
            await call.write(messages.head("/anything", "GET", end=True).bytes()[0])
            answer = Answer.of(await call.read())
            assert len(answer.picked) == 1
            call.cancel()
        process.send_signal(signal.SIGTERM)
        await process.stderr.read()
        assert await process.wait() == 0


@pytest.mark.parametrize(
    ("fleet", "server", "code", "words"),
    [(True, "there", 2, "--dns"), (False, "127.0.0.1:53", 1, "needs --fleet")],
)
async def test_a_name_server_that_cannot_be_used_is_said(tmp_path, fleet, server, code, words):
    """At the start, as other wrong options are."""
    file = tmp_path / "fleet.yaml"
    file.write_text(json.dumps({"pools": [pool()]}))
    given = ("--fleet", str(file)) if fleet else ()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidegate", "picker", *given, "--dns", server),
        stderr=asyncio.subprocess.PIPE,
        env=child_environment(),
    )
    _, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == code
    assert words in said.decode()


async def test_a_file_that_cannot_be_used_ends_with_2(tmp_path):
    """With its faults on stderr, as the control server writes them."""
    file = tmp_path / "fleet.yaml"
    file.write_text("pools: [{name: X}]")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidegate", "picker", "--fleet", str(file)),
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in child_environment().items() if name != SEED_VARIABLE},
    )
    _, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 2
    assert "fleet.yaml:1" in said.decode()


def found_in(folder):
    """Return the settings of a pool whose replicas a file in a folder lists."""
    listed = folder / "replicas.yaml"
    listed.write_text('- {id: r1, http: "127.0.0.1:8010"}\n- {id: r2, http: "127.0.0.1:8020"}\n')
    return {"endpoints": [], "endpoints_from": [{"file": str(listed), "protocols": ["http"]}]}


async def test_workers_read_the_file_each_and_agree(tmp_path):
    """They have the same replicas, the same incarnations and the same seed."""
    file = tmp_path / "fleet.yaml"
    pools = [pool(variants=[{"name": "stable"}], **found_in(tmp_path))]
    file.write_text(json.dumps({"pools": pools}))
    log = tmp_path / "log"
    with HeldPorts() as ports, log.open("wb") as written:
        listen, pages = ([ports.address() for _ in range(2)] for _ in range(2))
        options = ("--workers", "2", "--listen", ",".join(listen), "--metrics", ",".join(pages))
        async with asyncio.timeout(120):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tidegate", "picker", "--fleet", str(file), *options),
                stderr=written,
                stdout=written,
                env=child_environment(),
            )
            try:
                states = [await ready(page) for page in pages]
                while not any(each["fleet"]["found"]["finds"] for each in states):
                    states = [await ready(page) for page in pages]  # one of them begins to find
            finally:
                process.send_signal(signal.SIGTERM)
                await process.wait()
    first, second = (
        {
            name: each["incarnation"]
            for name, each in state["router"]["pools"]["llm"]["endpoints"].items()
        }
        for state in states
    )
    assert first == second
    assert set(first) == {"r1", "r2"}
    assert sorted(each["fleet"]["found"]["finds"] for each in states) == [False, True]
    assert process.returncode == 0, log.read_text("utf-8")
