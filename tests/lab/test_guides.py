"""Fleets and commands of the guides for what a reader has, through a real Envoy and picker."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import yaml

from bench.emulator.http import DataPort
from bench.emulator.replica import EmulatedReplica
from bench.engine import EngineConfig
from support.replicas import Replica
from support.traffic import eventually, metric

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("_curl")]

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LISTENER = "127.0.0.1:10000"
"""Clients' address in the guides, in whose place the test has its own."""
SERVER = re.compile(r"\bserver (?:\w+ )?([\d.]+:\d+)")


def blocks(guide, kind):
    """Return the blocks of a kind of a guide."""
    return [text for found, text in BLOCK.findall((GUIDES / guide).read_text()) if found == kind]


def fleet_of(guide):
    """Return the first fleet of a guide."""
    return yaml.safe_load(blocks(guide, "yaml")[0])


def command(guide, path):
    """Return the guide's call of a path, without its prompt."""
    (found,) = {
        line.removeprefix("$ ")
        for kind, text in BLOCK.findall((GUIDES / guide).read_text())
        for line in text.splitlines()
        if kind in {"", "sh"} and line.removeprefix("$ ").startswith("curl ") and path in line
    }
    return found


@pytest.fixture(scope="module")
def _curl():
    """Skip where the guides' command is not installed."""
    if shutil.which("curl") is None:
        pytest.skip("the curl command is not installed")


@asynccontextmanager
async def port(engine):
    """Serve an emulated engine with vLLM's page, in this process; yield its address."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(DataPort(engine, "vllm").protocol, "127.0.0.1", 0)
    async with server:
        host, number = server.sockets[0].getsockname()
        yield f"{host}:{number}"


@asynccontextmanager
async def served(empty_stack, guide, places):
    """Put the first fleet of a guide in force, with these addresses of HTTP in place of its own."""

    def change(fleet):
        fleet["pools"] = fleet_of(guide)["pools"]
        (pool,) = fleet["pools"]
        assert len(pool["endpoints"]) == len(places)
        for each, place in zip(pool["endpoints"], places, strict=True):
            if each["http"] in each.get("metrics", ""):
                each["metrics"] = each["metrics"].replace(each["http"], place)
            else:
                each.pop("metrics", None)
            each["http"] = place
            each.pop("grpc", None)

    async with empty_stack.having(change, models=("toy-llm",), gateway=False) as stack:
        yield stack


async def typed(stack, line):
    """Run a command of a guide; return what it printed."""
    address = stack.http_url.removeprefix("http://")
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", line.replace(LISTENER, address)), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return out.decode()


@pytest.mark.parametrize("guide", ["run-with-your-tritons.md", "migrate.md"])
async def test_a_guide_s_fleet_serves_the_guide_s_request(empty_stack, guide):
    """The first block as it stands, but for the addresses of its replicas."""
    endpoints = fleet_of(guide)["pools"][0]["endpoints"]
    async with AsyncExitStack() as exit_:
        replicas = [
            await exit_.enter_async_context(Replica(each["id"]).serve()) for each in endpoints
        ]
        places = [each.address for each in replicas]
        stack = await exit_.enter_async_context(served(empty_stack, guide, places))

        async def answered():
            await typed(stack, command(guide, "/v2/models/toy-llm/generate"))
            return sum(len(each.asked) for each in replicas) > 0

        assert await eventually(answered)


async def test_the_guide_s_engines_serve_and_are_read(empty_stack, http):
    """Two engines with vLLM's pages: a chat is answered, a foreign model refused as it says."""
    guide = "openai-engines.md"
    engines = [EmulatedReplica(EngineConfig(), 10.0) for _ in range(2)]
    async with AsyncExitStack() as exit_:
        places = [await exit_.enter_async_context(port(each)) for each in engines]
        stack = await exit_.enter_async_context(served(empty_stack, guide, places))
        line = command(guide, "/v1/chat/completions")

        async def answered():
            return '"choices"' in await typed(stack, line)

        assert await eventually(answered)
        assert sum(each.counters.generated for each in engines) > 0
        (refusal,) = (text for text in blocks(guide, "") if "unknown-model" in text)
        assert await typed(stack, line.replace("llama-3-8b", "other")) == refusal.strip()

        async def read():
            names = ("telemetry_endpoints", "telemetry_stale_endpoints")
            page = stack.picker_metrics
            return [await metric(http, page, f"tidegate_picker_{each}") for each in names] == [2, 0]

        assert await eventually(read)


def nginx(folder):
    """Return the guide's configuration of nginx as a whole file, and the call that checks it."""
    (text,) = blocks("migrate.md", "nginx")
    logs = f"pid {folder}/pid; error_log stderr; events {{}}"
    file = folder / "nginx.conf"
    file.write_text(f"{logs} http {{ access_log off; {text} }}")
    return text, ("nginx", "-t", "-p", str(folder), "-c", str(file))


def haproxy(folder):
    """Return the guide's configuration of HAProxy as a whole file, and the call that checks it."""
    (text,) = (each for each in blocks("migrate.md", "text") if "backend llm" in each)
    file = folder / "haproxy.cfg"
    file.write_text(f"defaults\n  mode http\n  timeout connect 1s\n  timeout client 600s\n{text}")
    return text, ("haproxy", "-c", "-f", str(file))


@pytest.mark.parametrize("written", [nginx, haproxy])
def test_the_other_balancer_has_the_same_replicas(written, tmp_path):
    """Their servers in their order are our endpoints, and the same one stands by."""
    text, _ = written(tmp_path)
    lines = [line for line in text.splitlines() if SERVER.search(line)]
    endpoints = fleet_of("migrate.md")["pools"][0]["endpoints"]
    assert [SERVER.search(line)[1] for line in lines] == [each["http"] for each in endpoints]
    assert ["backup" in line for line in lines] == [
        each.get("standby", False) for each in endpoints
    ]
    assert ["weight 2" in line.replace("=", " ") for line in lines] == [
        each.get("capacity") == 2 for each in endpoints
    ]


@pytest.mark.parametrize("written", [nginx, haproxy])
def test_the_other_balancer_takes_its_configuration(written, tmp_path):
    """Where the program is installed."""
    _, call = written(tmp_path)
    if (program := shutil.which(call[0], path="/usr/sbin:/usr/bin:/usr/local/sbin")) is None:
        pytest.skip(f"{call[0]} is not installed")
    ended = subprocess.run((program, *call[1:]), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
