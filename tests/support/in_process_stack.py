"""A stack with the control server in the test's process, and a real Envoy, picker and upstreams.

For tests that change the fleet at a high rate, corrupt its resources or disconnect the control
server.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import aiohttp
import orjson
from prometheus_client import CollectorRegistry

from bench.load.upstream import instant_upstreams
from support.replicas import PATIENT
from support.traffic import eventually
from tidegate.stack.envoy import envoy_binary, envoy_command, envoy_environment, render_bootstrap
from tidegate.stack.probes import picker_healthy
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.processes.waiting import http_ok, wait_until
from tidegate.stack.runfolder import RunFolder
from tidegate_common.children import module_command
from xds_server.control.fleet_control import Control
from xds_server.control.operation import Change, ChangeOptions
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.store import RevisionStore
from xds_server.observability import XdsMetrics
from xds_server.server.history import MarkedHistory
from xds_server.server.service import AdsServer

if TYPE_CHECKING:
    from pathlib import Path

ENVOY, SECOND_ENVOY, PICKER = "envoy", "envoy-2", "picker"
GENERATE = "/v2/models/toy-llm/generate"
WAIT = ChangeOptions("test", wait=True, timeout_s=30, force=True)


class InProcessStack:
    """A running stack; an async context manager.

    Args:
        protocol: xDS variant of Envoy.
        spare: Number of upstream addresses; the first three are in the first fleet. 0 = a subclass
            has its own.
        state: Folder of the control server's revisions; in memory if ``None``.
    """

    def __init__(self, protocol: str, *, spare: int = 8, state: Path | None = None) -> None:
        self.protocol = protocol
        self.state = state
        self._spare = spare
        self._exit = AsyncExitStack()

    follows_late: ClassVar[bool] = False
    """Whether ``apply`` waits for clients, too, that were late because they did not run."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exit_:
            self.upstreams: list[str] = []
            if self._spare:
                self.upstreams = await exit_.enter_async_context(instant_upstreams(self._spare))
            self.run = exit_.enter_context(RunFolder.create())
            ports = exit_.enter_context(HeldPorts())
            self.listener, self.picker, self.envoy_admin = (ports.address() for _ in range(3))
            self.ads_address, self.ads_outside, picker_page = (ports.address() for _ in range(3))
            self.http = await exit_.enter_async_context(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=0),
                    timeout=aiohttp.ClientTimeout(total=60),
                )
            )
            exit_.push_async_callback(self.stop_control)
            await self.start_control()
            self.supervisor = Supervisor(self.run.logs)
            exit_.push_async_callback(self.supervisor.stop)
            await self._start_picker(picker_page)
            await self._start_envoy()
            await self.serving()
            self._exit = exit_.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    # --- Control server -------------------------------------------------------------------------

    async def start_control(self) -> None:
        """Start a control server with the stored state, or with the first fleet."""
        self.store = await asyncio.to_thread(RevisionStore, self.state)
        lasts = self.state is not None
        self.history = MarkedHistory.of(self.store, lasts=lasts, accept_loss=False)
        self.ads = AdsServer(XdsMetrics(CollectorRegistry()), history=self.history)
        self.control = Control(self.store, self.ads, lambda: int(time.time() * 1e3), time.monotonic)
        await self.ads.start(self.ads_address)
        await self.control.start(orjson.dumps(self.first_fleet()).decode(), "fleet")

    async def stop_control(self) -> None:
        """Stop the control server; its streams end as in a shutdown."""
        await self.ads.stop(0)
        await self.control.stop()
        self.store.close()

    def first_fleet(self) -> dict[str, Any]:
        """Return one pool with two stable replicas and a canary."""
        return {
            "listener": {"address": self.listener},
            "pickers": {"addresses": [self.picker], "timeout": PATIENT},
            "pools": [
                {
                    "name": "llm",
                    "default": True,
                    "match": {"models": ["toy-llm"]},
                    "variants": [{"name": "stable", "weight": 90}, {"name": "c0", "weight": 10}],
                    "endpoints": [
                        self.endpoint(0, "stable"),
                        self.endpoint(1, "stable"),
                        self.endpoint(2, "c0"),
                    ],
                    "health": {"interval": "1s", "timeout": PATIENT},
                }
            ],
        }

    def endpoint(self, number: int, variant: str) -> dict[str, Any]:
        """Return the replica at an upstream address."""
        return {"id": f"u{number}", "http": self.upstreams[number], "variant": variant}

    async def apply(self, fleet: dict[str, Any]) -> Change:
        """Apply a fleet and wait until it is acknowledged."""
        change = await self.control.apply(Fleet.model_validate(fleet), WAIT)
        problems = () if change.outcome is None else change.outcome.problems
        if self.follows_late and any(each.state == "STALLED" for each in problems):
            await wait_until(
                self._synced, "late clients", timeout_s=60, supervisors=(self.supervisor,)
            )
        return change

    async def _synced(self) -> str | None:
        kinds = {client.kind for client in self.ads.clients()}
        states = {view.state for client in self.ads.clients() for view in client.types}
        return None if len(kinds) == 2 and states == {"SYNCED"} else f"{kinds} {states}"

    # --- Picker and Envoy -----------------------------------------------------------------------

    async def _start_picker(self, page: str) -> None:
        command = module_command("ext_proc", "--listen", self.picker)
        command += ("--xds", self.client_address, "--metrics", page, "--id", "picker-1")
        await self.supervisor.start(PICKER, command, service_environment())

    async def restart(self, name: str) -> None:
        """Start the picker or Envoy again, and wait until it serves; kill it first if it runs.

        The control server may list it, and Envoy take a picker for well, a while after its end.
        """
        if self.supervisor.running(name):
            await self.supervisor.kill(name)
        kind = {PICKER: "picker", ENVOY: "envoy"}[name]

        async def gone() -> str | None:
            return kind if any(client.kind == kind for client in self.ads.clients()) else None

        await wait_until(gone, "the end of the stream", timeout_s=60)
        await self.supervisor.restart(name)
        await self.serving()

    async def _start_envoy(self) -> None:
        config = self.run.write("envoy.yaml", self.bootstrap())
        command = envoy_command(envoy_binary(), config, 1)
        await self.supervisor.start(ENVOY, command, envoy_environment())

    async def start_second_envoy(self) -> str:
        """Start an Envoy beside the first, at the same listener; return its admin address."""
        with HeldPorts() as ports:  # until it listens
            admin = ports.address()
            text = render_bootstrap(SECOND_ENVOY, "test", self.client_address, admin, "delta")
            command = envoy_command(envoy_binary(), self.run.write("envoy-2.yaml", text), 1)
            await self.supervisor.start(SECOND_ENVOY, command, envoy_environment())
            await wait_until(
                lambda: http_ok(self.http, f"http://{admin}/ready"),
                "the second Envoy",
                timeout_s=60,
                supervisors=(self.supervisor,),
            )
        return admin

    def bootstrap(self) -> str:
        """Return Envoy's bootstrap."""
        return render_bootstrap(
            "envoy-1", "test", self.client_address, self.envoy_admin, self.protocol
        )

    @property
    def client_address(self) -> str:
        """The ADS address that clients connect to."""
        return self.ads_address

    async def serving(self) -> None:
        """Wait until requests are served through all pickers and all clients are in sync."""
        pickers = len(self.first_fleet()["pickers"]["addresses"])
        for look in (
            self._synced,
            lambda: picker_healthy(self.http, self.envoy_admin, pickers),
            lambda: http_ok(self.http, f"http://{self.listener}/v2/health/ready"),
        ):
            await wait_until(look, "the stack", timeout_s=60, supervisors=(self.supervisor,))

    async def envoy_page(self, page: str) -> Any:
        """Return a page of Envoy's admin interface as JSON."""
        async with self.http.get(f"http://{self.envoy_admin}/{page}") as answer:
            return orjson.loads(await answer.read())


@dataclass
class Flow:
    """A steady load on persistent connections, sequential on each.

    Args:
        address: Address of Envoy's listener.
        rate: Requests per second over all connections.
        connections: Number of connections.
    """

    address: str
    rate: float = 100.0
    connections: int = 4
    answered: int = 0
    wrong: Counter = field(default_factory=Counter)
    _tasks: list[asyncio.Task] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self.began = time.monotonic()
        self._tasks = [asyncio.create_task(self._one(n)) for n in range(self.connections)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def per_second(self) -> float:
        """Mean rate of answered requests per second."""
        return self.answered / (time.monotonic() - self.began)

    async def reaches(self, answers: int) -> None:
        """Wait until so many requests are answered."""

        async def there() -> bool:
            return self.answered >= answers

        assert await eventually(there), f"{self.answered} answers, {self.wrong}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection."""
        host, _, port = self.address.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _one(self, number: int) -> None:
        async with AsyncExitStack() as exit_:
            await self._ask(number, exit_)

    async def _ask(self, number: int, exit_: AsyncExitStack) -> None:
        writer, pause, due = None, self.connections / self.rate, time.monotonic()
        turn = 0
        while True:
            due = max(due + pause, time.monotonic() - 1.0)
            await asyncio.sleep(due - time.monotonic())
            turn += 1
            try:
                if writer is None:
                    reader, writer = await self.connect()
                    exit_.callback(writer.close)
                writer.write(_request(f"s{number}-{turn % 17}", ab=turn % 5 == 0))
                async with asyncio.timeout(60):
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                    body = await reader.readexactly(length)
            except (
                OSError,
                EOFError,
                TimeoutError,
                IndexError,
                asyncio.LimitOverrunError,
            ) as error:
                self.wrong[type(error).__name__] += 1
                head = b"connection: close"
            else:
                self.answered += 1
                if not head.startswith(b"HTTP/1.1 200"):
                    self.wrong[(head.split(b"\r\n")[0] + b" " + body[:200]).decode()] += 1
            if b"connection: close" in head and writer is not None:
                writer.close()
                writer = None


def _request(session: str, *, ab: bool) -> bytes:
    body = orjson.dumps({"text_input": f"{session} " * 40, "max_tokens": 1})
    test = "x-test: b\r\n" if ab else ""
    return (
        f"POST {GENERATE} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
        f"x-session-id: {session}\r\n{test}content-length: {len(body)}\r\n\r\n"
    ).encode() + body
