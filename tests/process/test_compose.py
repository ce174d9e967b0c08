"""The compose file: its services run as processes, with their commands, mounts and checks."""

from __future__ import annotations

import ast
import asyncio
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import pytest

from support.certificates import Pair
from support.containers import ROOT, Containers, mounts
from support.identities import Presented
from support.traffic import GENERATE, eventually, fresh_prompt
from tidegate.stack.runfolder import RunFolder
from tidegate.terminal.errors import UNFINISHED
from tidegate_api.names import REPLICAS_HEADER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("demo_extra")]

RUNNING = ("xds", "picker", "gateway", "envoy", "triton-1", "triton-2", "triton-3")
TLS_VARIABLES = tuple(f"TIDEGATE_TLS_{each}" for each in ("CERT", "KEY", "CA", "SERVER_NAME"))
STATISTICS = "/v2/models/toy-llm/stats"
LOAD = ROOT / "deploy/compose/load.py"
UNITS = {"m": 2**20, "g": 2**30}
UNREACHABLE = 3
"""Exit code of a verb that cannot talk to the control server."""


@pytest.fixture(scope="module")
async def system() -> AsyncIterator[Containers]:
    """Run all services of the compose file; each health check has passed."""
    for program in ("openssl", "curl", "bash"):
        if shutil.which(program) is None:
            pytest.skip(f"the {program} command is not installed")
    with RunFolder.create() as run:
        started = Containers(run, {"TOY_LLM_TIME_SCALE": "0.1"})
        try:
            await started.up()
            yield started
        finally:
            await started.stop()


async def ask(http: aiohttp.ClientSession, system: Containers) -> int:
    """Send a request to the published port; return the status."""
    (listener,) = system.published("envoy")
    body = {"text_input": fresh_prompt(), "max_tokens": 1}
    async with http.post(f"http://{listener}{GENERATE}", json=body) as answer:
        await answer.read()
        return answer.status


async def picks(http: aiohttp.ClientSession, system: Containers) -> int:
    """Return how many requests the picker knows to have ended well; it asks for a certificate."""
    folder = system.volume("admin-certs")
    who = Presented(folder / "ca.crt", Pair(folder / "tls.crt", folder / "tls.key"))
    context = who.context()
    context.check_hostname = False
    url = f"https://{system.address('picker', 'control')}:18081/debug/state"
    async with http.get(url, ssl=context) as answer:
        state: dict[str, Any] = orjson.loads(await answer.read())
    return int(state["feedback"]["entries"].get("good", 0))


async def clients(system: Containers) -> dict[str, str]:
    """Return the state of each client, as the service ``cli`` shows it."""
    ended = await system.once("cli", "status", "--output=json")
    assert ended.code == 0, ended.output
    return {each["client"]: each["state"] for each in orjson.loads(ended.output)["clients"]}


async def in_sync(system: Containers) -> bool:
    """Return whether all clients have the fleet in force."""
    return await clients(system) == dict.fromkeys(("envoy-1", "picker-1", "gateway-1"), "SYNCED")


def processes(system: Containers, name: str) -> Iterator[Path]:
    """Return the folders in ``/proc`` of a service's processes."""
    group = system.supervisor.pid(name)
    for found in Path("/proc").glob("[0-9]*"):
        try:
            fields = (found / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            yield found


def written(process: Path) -> Iterator[Path]:
    """Return the files that a process has open for writing."""
    for descriptor in (process / "fd").iterdir():
        try:
            target = descriptor.readlink()
            info = (process / "fdinfo" / descriptor.name).read_text()
        except OSError:
            continue
        flags = int(info.partition("flags:")[2].split()[0], 8)
        if flags & os.O_ACCMODE and target.is_absolute():
            yield target


async def test_requests_flow_through_the_published_port(system, http) -> None:
    """With picks and log entries, over TLS with certificates of both sides."""

    async def counted() -> bool:  # Envoy may serve before it finds the picker healthy
        assert await ask(http, system) == 200
        return await picks(http, system) >= 10

    assert await eventually(counted)
    assert await eventually(partial(in_sync, system))


async def asked(http: aiohttp.ClientSession, system: Containers, path: str) -> tuple[int, str]:
    """Ask about models; return the status, and of how many replicas the answer is made."""
    (listener,) = system.published("envoy")
    async with http.get(f"http://{listener}{path}") as answer:
        await answer.read()
        return answer.status, answer.headers.get(REPLICAS_HEADER, "")


async def test_questions_are_answered_from_all_replicas(system, http) -> None:
    """By the gateway, over TLS with certificates of both sides."""

    async def whole() -> bool:
        return await asked(http, system, STATISTICS) == (200, "3/3")

    assert await eventually(whole)


async def test_the_overlay_s_load_is_answered(system) -> None:
    """Its program talks to the published port, and prints what became of its requests."""
    (listener,) = system.published("envoy")
    command = (sys.executable, "-P", str(LOAD), f"http://{listener}", "1")
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, "CLIENTS": "2"}, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    counts = ast.literal_eval(said.decode().splitlines()[-1])
    assert list(counts) == ["200"]


async def test_an_operator_works_in_the_service_for_it(system) -> None:
    """A change is taken and acknowledged by all clients."""
    ended = await system.once("cli", "weight", "llm", "stable=50", "canary=50")
    assert ended.code in (0, UNFINISHED), ended.output  # a client may be late
    assert await eventually(partial(in_sync, system))


async def test_a_service_without_its_certificate_is_refused(system) -> None:
    """Neither a client without certificates nor one of another authority is believed."""
    other = system.root("certs") / "tmp" / "others"
    plain, made = await asyncio.gather(
        system.once("cli", "status", without=TLS_VARIABLES),
        system.once("certs", "certs", "/tmp/others"),  # noqa: S108 - of a container
    )
    assert plain.code == UNREACHABLE, plain.output
    assert made.code == 0, made.output
    mine = {
        "TIDEGATE_TLS_CERT": str(other / "admin" / "tls.crt"),
        "TIDEGATE_TLS_KEY": str(other / "admin" / "tls.key"),
    }
    foreign, ended = await asyncio.gather(
        system.once("cli", "status", **mine),
        system.once("picker", TIDEGATE_TLS_CERT=str(other / "none.crt")),
    )
    assert foreign.code == UNREACHABLE, foreign.output
    assert ended.code not in (0, -1)
    assert "none.crt" in ended.output


async def test_services_write_only_where_they_may(system) -> None:
    """Their root is read-only: what is open for writing is in a mount for it or in memory."""
    logs = system.supervisor.log("xds").parent
    for name in RUNNING:
        service = system.services[name]
        assert service["read_only"]
        places = [Path(f"{system.root(name)}{each}") for each in service["tmpfs"]]
        places += [
            system.volume(source) for source, read_only in mounts(service).values() if not read_only
        ]
        # A program's own places are not translated; /tmp would be that of this machine.
        places += [Path(each) for each in service["tmpfs"] if each != "/tmp"]  # noqa: S108
        places += [Path("/dev"), logs]
        files = {file for process in processes(system, name) for file in written(process)}
        allowed = [place.resolve() for place in places]
        outside = {f for f in files if not any(map(f.is_relative_to, allowed))}
        assert not outside, name


async def test_services_are_far_below_their_limits(system) -> None:
    """Half of the memory and of the processes, so that a busy hour ends none."""
    for name in RUNNING:
        service, memory, tasks = system.services[name], 0, 0
        for process in processes(system, name):
            memory += int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            tasks += len(list((process / "task").iterdir()))
        limit = service["mem_limit"]
        assert 0 < memory < int(limit[:-1]) * UNITS[limit[-1]] / 2, name
        assert 0 < tasks < service["pids_limit"] / 2, name


async def test_certificates_are_renewed_while_the_system_runs(system, http) -> None:
    """``docker compose run --rm certs``: no restart, and no request fails."""
    before = (system.volume("control-certs") / "tls.crt").read_bytes()
    ended = await system.once("certs")
    assert ended.code == 0, ended.output
    assert (system.volume("control-certs") / "tls.crt").read_bytes() != before

    async def taken() -> bool:
        logs = [system.supervisor.log(name).read_text() for name in ("xds", "picker", "gateway")]
        return all("certificate_taken" in each for each in logs)

    assert await eventually(taken)
    assert {await ask(http, system) for _ in range(5)} == {200}
    assert await eventually(partial(in_sync, system))


async def test_a_health_check_fails_with_its_service(system, http) -> None:
    """Each check sees that its service has ended; requests need no picker."""
    await system.supervisor.kill("picker")
    assert await system.health("picker") is not None
    assert await ask(http, system) == 200
    await system.supervisor.kill("gateway")
    assert await system.health("gateway") is not None
    assert await ask(http, system) == 200

    async def unanswered() -> bool:
        return (await asked(http, system, STATISTICS))[0] == 503

    assert await eventually(unanswered)
    await asyncio.gather(system.start("picker"), system.start("gateway"))
    await asyncio.gather(system.wait_healthy("picker"), system.wait_healthy("gateway"))
    await asyncio.gather(*(system.wait_healthy(name) for name in RUNNING))


async def test_envoy_is_idle_once_its_hook_has_run(system) -> None:
    """Nothing is in flight that its stop could cut, and its health check says that it goes."""
    ended = await system.hook("envoy")
    assert ended.code == 0, ended.output
    assert await system.health("envoy") is not None
    (listener,) = system.published("envoy")
    async with aiohttp.ClientSession() as new:  # open connections may go on to the end
        with pytest.raises(aiohttp.ClientConnectorError):
            await new.get(f"http://{listener}/v2")
