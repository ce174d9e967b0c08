"""A stack with several of everything: Envoys of both variants, pickers, a control server.

All are processes of their own, so that a test can kill each. The replicas of the pool ``llm`` are
instant; those of the pool ``talk`` stream long answers. The pool ``idle`` gets no requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import aiohttp
import grpc
import orjson

from bench.load.upstream import instant_upstreams
from support.replicas import PATIENT, Replica
from tidegate.stack.envoy import envoy_binary, envoy_command, envoy_environment, render_bootstrap
from tidegate.stack.probes import picker_healthy
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.processes.waiting import http_ok, wait_until
from tidegate.stack.runfolder import RunFolder
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.admin.v1 import admin_pb2_grpc
from tidegate_common.children import module_command
from xds_server.protocol.publication import STAGE_DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

ENVOYS = {"envoy-1": "delta", "envoy-2": "sotw"}
PICKERS = ("picker-1", "picker-2")
CONTROL = "control"
INSTANT, TALKING = 8, 4
"""Number of replicas of ``llm`` and of ``talk``, in the fleet or spare."""
CHUNK_S = 0.5
CONNECT_S = 60.0
_TALK = "/v2/models/talk/generate_stream"


class Crowd:
    """The stack; an async context manager.

    Args:
        folder: Where the fleet file and the revisions are.
        stream_s: Length of an answer of the pool ``talk``, in seconds.
        others: Command line of each Envoy that is not the installed one, instead of its binary.
    """

    def __init__(
        self, folder: Path, stream_s: float, others: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.file, self._state = folder / "fleet.json", folder / "state"
        self._others = others or {}
        self.revision = 0
        """That of the fleet that was read last."""
        self._gaps_s = (CHUNK_S,) * round(stream_s / CHUNK_S)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exit_:
            *self.instant, self._idle = await exit_.enter_async_context(
                instant_upstreams(INSTANT + 1)
            )
            self.talking = [
                await exit_.enter_async_context(Replica(f"t{n}", gaps_s=self._gaps_s).serve())
                for n in range(TALKING)
            ]
            run = exit_.enter_context(RunFolder.create())
            ports = exit_.enter_context(HeldPorts())
            self.ads, self.admin, self._metrics = (ports.address() for _ in range(3))
            self.listener = ports.address()
            self._pages = {name: ports.address() for name in (*ENVOYS, *PICKERS)}
            self._pickers = {name: ports.address() for name in PICKERS}
            self.http = await exit_.enter_async_context(
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
            )
            channel = await exit_.enter_async_context(
                grpc.aio.insecure_channel(
                    self.admin,
                    options=[
                        ("grpc.initial_reconnect_backoff_ms", 100),
                        ("grpc.max_reconnect_backoff_ms", 500),
                    ],
                )
            )
            self.operator: Any = admin_pb2_grpc.AdminStub(channel)
            self.supervisor = Supervisor(run.logs)
            exit_.push_async_callback(self.supervisor.stop)
            self.edit(self.first_fleet())
            await self._start(run)
            await self.serving()
            self._exit = exit_.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    async def connect(self, envoy: str) -> Connection:
        """Connect to one Envoy: both listen at the fleet's address, and the kernel chooses."""
        host, _, port = self.listener.rpartition(":")
        async with asyncio.timeout(CONNECT_S):
            while True:
                with contextlib.suppress(OSError):
                    reader, writer = await asyncio.open_connection(host, int(port))
                    mine = writer.get_extra_info("sockname")[1]
                    if await self._owns(envoy, int(port), mine):
                        return reader, writer
                    writer.close()
                await asyncio.sleep(0.01)

    async def _owns(self, envoy: str, port: int, client: int) -> bool:
        """Return whether the connection from this port has been accepted by this Envoy."""
        while True:
            inode = accepted(port, client)
            if inode != 0:
                break
            await asyncio.sleep(0.005)
        return inode is not None and inode in sockets(self.supervisor.pid(envoy))

    # --- fleet ----------------------------------------------------------------------------------

    def first_fleet(self) -> dict[str, Any]:
        """Return the fleet with which the stack starts."""
        health = {"interval": "1s", "timeout": PATIENT}
        common: dict[str, Any] = {
            "variants": [{"name": "stable", "weight": 90}, {"name": "c0", "weight": 10}],
            "health": health,
        }
        return {
            "listener": {"address": self.listener},
            "pickers": {"addresses": list(self._pickers.values()), "timeout": PATIENT},
            "pools": [
                {
                    **common,
                    "name": "llm",
                    "default": True,
                    "match": {"models": ["toy-llm"]},
                    "endpoints": [
                        self.endpoint("llm", n, "c0" if n > 2 else "stable") for n in range(5)
                    ],
                },
                {
                    **common,
                    "name": "talk",
                    "match": {"models": ["talk"]},
                    "endpoints": [
                        self.endpoint("talk", n, "c0" if n > 1 else "stable") for n in range(3)
                    ],
                },
                {
                    "name": "idle",
                    "match": {"models": ["idle"]},
                    "endpoints": [{"id": "idle", "http": self._idle}],
                    "health": health,
                },
            ],
        }

    def endpoint(self, pool: str, number: int, variant: str) -> dict[str, Any]:
        """Return a replica of ``llm`` or ``talk``."""
        address = self.instant[number] if pool == "llm" else self.talking[number].address
        return {"id": f"{pool[0]}{number}", "http": address, "variant": variant}

    def edit(self, fleet: dict[str, Any]) -> None:
        """Write the fleet file, as an editor replaces it."""
        fresh = self.file.with_suffix(".new")
        fresh.write_bytes(orjson.dumps(fleet))
        fresh.replace(self.file)

    async def fleet(self) -> dict[str, Any]:
        """Return the fleet in force."""
        answer = await self.operator.GetFleet(api.GetFleetRequest(), wait_for_ready=True)
        self.revision = answer.revision
        found: dict[str, Any] = orjson.loads(answer.fleet_json)
        return found

    async def status(self) -> Any:
        """Return the control server's status."""
        return await self.operator.GetStatus(api.GetStatusRequest(), wait_for_ready=True)

    async def acknowledged(self) -> None:
        """Wait until each Envoy and picker has acknowledged all that it was sent."""
        await wait_until(
            self._owing, "answers", timeout_s=STAGE_DEADLINE_S, supervisors=(self.supervisor,)
        )

    async def _owing(self) -> str | None:
        held = {
            client.node
            for client in (await self.status()).clients
            if all(each.state in {"SYNCED", "NOT_SENT"} for each in client.types)
        }
        owing = {*ENVOYS, *PICKERS} - held
        return f"{sorted(owing)} owe answers" if owing else None

    # --- processes ------------------------------------------------------------------------------

    async def _start(self, run: RunFolder) -> None:
        start, env = self.supervisor.start, service_environment()
        await start(
            CONTROL,
            (
                *module_command("xds_server", "--fleet", str(self.file)),
                *("--state", str(self._state), "--ads", self.ads, "--admin", self.admin),
                *("--metrics", self._metrics, "--log-format", "json"),
            ),
            env,
        )
        for name, address in self._pickers.items():
            command = module_command("ext_proc", "--listen", address, "--xds", self.ads)
            await start(name, (*command, "--metrics", self._pages[name], "--id", name), env)
        for name, protocol in ENVOYS.items():
            text = render_bootstrap(name, "test", self.ads, self._pages[name], protocol)
            config = run.write(f"{name}.yaml", text)
            binary, *more = self._others.get(name, (str(envoy_binary()),))
            command = envoy_command(Path(binary), config, 1)
            await start(name, (*command, *more), envoy_environment())

    async def serving(self) -> None:
        """Wait until each Envoy serves requests and finds both pickers healthy."""
        for envoy in ENVOYS:
            await self.ready(envoy)

    async def ready(self, envoy: str) -> None:
        """Wait until an Envoy serves requests and finds both pickers healthy."""
        page = self._pages[envoy]
        # Until a picker's own page answers, Envoy may take the one that was there for well.
        for look in (
            *(partial(http_ok, self.http, f"http://{self._pages[p]}/healthz") for p in PICKERS),
            lambda: http_ok(self.http, f"http://{page}/ready"),
            lambda: picker_healthy(self.http, page, len(PICKERS)),
        ):
            await wait_until(look, envoy, timeout_s=60, supervisors=(self.supervisor,))

    async def kill(self, name: str) -> None:
        """Kill a process with SIGKILL and start it again."""
        await self.supervisor.kill(name)
        await asyncio.sleep(0.3)
        await self.supervisor.restart(name)


@dataclass
class Talks:
    """Long answers through one Envoy, ``at_once`` at a time, each on a connection of its own."""

    connect: Callable[[], Awaitable[Connection]]
    chunks: int
    """Number of chunks of a whole answer after the first."""
    at_once: int = 3
    whole: int = 0
    """Number of answers that were read to their end."""
    wrong: Counter[str] = field(default_factory=Counter)
    """What became of the others."""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    last: bool = False
    """Begin no further answer."""

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._talk(n)) for n in range(self.at_once)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def finish(self) -> None:
        """Begin no further answer and wait for the end of all."""
        self.last = True
        await asyncio.gather(*self._tasks)

    async def _talk(self, number: int) -> None:
        await asyncio.sleep(number * 0.7)
        turn = 0
        while not self.last:
            turn += 1
            began = time.monotonic()
            try:
                told = await self._one(f"{number}-{turn}")
            except (OSError, EOFError, asyncio.LimitOverrunError) as error:
                told = repr(error)
            if told == "whole":
                self.whole += 1
            else:
                self.wrong[f"after {time.monotonic() - began:.1f} s: {told}"] += 1
                await asyncio.sleep(0.1)

    async def _one(self, session: str) -> str:
        reader, writer = await self.connect()
        try:
            body = orjson.dumps({"text_input": session * 10, "max_tokens": 1})
            head = f"POST {_TALK} HTTP/1.1\r\nhost: x\r\nx-session-id: {session}\r\n"
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                return f"{answer!r} {await reader.read(300)!r}"
            rest = await reader.readuntil(b"\r\n0\r\n\r\n")
            found = rest.count(b"more ")
            return "whole" if found == self.chunks else f"{found} of {self.chunks} chunks"
        finally:
            writer.close()


def accepted(port: int, client: int) -> int | None:
    """Return the inode of the socket that serves a connection; 0 = not accepted yet."""
    with open("/proc/net/tcp", encoding="ascii") as table:  # noqa: PTH123 - no file of ours
        for line in table:
            row = line.split()
            if row[1].endswith(f":{port:04X}") and row[2].endswith(f":{client:04X}"):
                return int(row[9])
    return None


def sockets(pid: int) -> set[int]:
    """Return the inodes of a process's sockets."""
    found = set()
    with contextlib.suppress(FileNotFoundError):
        for each in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                name = str(Path(each.path).readlink())
                if name.startswith("socket:["):
                    found.add(int(name[8:-1]))
    return found
