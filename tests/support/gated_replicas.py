"""Replicas that answer when a test says so, behind a real Envoy and picker."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Self

from aiohttp import web

from support import patient_picker
from support.in_process_stack import PICKER, InProcessStack
from support.replicas import PATIENT
from support.sites import end
from support.traffic import eventually, metric
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.spawning import service_environment
from tidegate_api.pools import MAX_WAIT_S
from tidegate_common.children import module_command

GENERATE = "/v2/models/toy-llm/generate"


class GatedReplica:
    """One replica; an async context manager."""

    def __init__(self) -> None:
        self.held: list[asyncio.Future[None]] = []
        """Requests that wait for their answer, oldest first."""
        self.headers: list[dict[str, str]] = []
        """Headers of all requests so far."""
        self.most = 0
        """Most requests that it had at one time."""
        self.port = 0
        self.open = False
        """It answers at once."""
        self.slots = 0
        """Requests beyond these get 503 at once; 0 = none does."""
        self.declined = 0
        self.address = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._ready)
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.address = f"127.0.0.1:{self.port}"
        return self

    async def restart(self) -> None:
        """Break all connections, and start again at the same address."""
        await end(self._runner)
        await self.__aenter__()

    async def __aexit__(self, *_: object) -> None:
        self.let_all()
        await end(self._runner)

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _answer(self, request: web.Request) -> web.Response:
        await request.read()
        if self.slots and len(self.held) >= self.slots:
            self.declined += 1
            return web.json_response({"error": "full"}, status=503)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        gate = asyncio.get_running_loop().create_future()
        self.held.append(gate)
        self.most = max(self.most, len(self.held))
        try:
            if not self.open:
                await gate
        finally:
            self.held.remove(gate)
        return web.json_response({"text_output": "x"})

    def let(self) -> None:
        """Answer the oldest request."""
        next(gate for gate in self.held if not gate.done()).set_result(None)

    def reset(self) -> None:
        """Begin anew; it has no request."""
        assert not self.held
        self.headers.clear()
        self.most, self.open, self.slots, self.declined = 0, False, 0, 0

    def let_all(self) -> None:
        """Answer all requests, and further ones at once."""
        self.open = True
        for gate in self.held:
            if not gate.done():
                gate.set_result(None)


class GatedStack(InProcessStack):
    """Two such replicas, one request at a time on each; an async context manager.

    Args:
        workers: Processes of the picker.
        bursts: Its queues may be long for a minute (``patient_picker``); for a single process.
        timeout: How long Envoy waits for a picker that does not ask for more.
        transport: gRPC implementation of the picker.
    """

    follows_late = True

    def __init__(
        self,
        *,
        workers: int = 1,
        bursts: bool = False,
        timeout: str = "60s",
        transport: str = "nghttp2",
    ) -> None:
        super().__init__("delta", spare=0)
        self._workers, self._bursts, self._transport = workers, bursts, transport
        self._timeout = timeout
        self.replicas = [GatedReplica(), GatedReplica()]
        self._further: list[str] = []
        self._pages: list[str] = []

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exit_:
            ports = exit_.enter_context(HeldPorts())
            self._further = [ports.address() for _ in range(1, self._workers)]
            self._pages = [ports.address() for _ in range(1, self._workers)]
            for replica in self.replicas:
                await exit_.enter_async_context(replica)
            await super().__aenter__()
            self._running = exit_.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await super().__aexit__(*error)
        await self._running.aclose()

    def first_fleet(self) -> dict[str, Any]:
        """Return one pool that lets requests wait."""
        return {
            "listener": {"address": self.listener},
            "pickers": {"addresses": [self.picker, *self._further], "timeout": self._timeout},
            "pools": [
                {
                    "name": "llm",
                    "default": True,
                    "match": {"models": ["toy-llm"]},
                    "routing": {"max_wait": f"{MAX_WAIT_S}s"},
                    "circuit_breaker": {"per_endpoint_in_flight": 1},
                    "health": {"repository": False, "timeout": PATIENT},
                    "endpoints": [
                        {"id": f"r{number}", "http": replica.address, "grpc": replica.address}
                        for number, replica in enumerate(self.replicas)
                    ],
                }
            ],
        }

    async def _start_picker(self, page: str) -> None:
        self._pages.insert(0, page)
        listen = ",".join((self.picker, *self._further))
        module = patient_picker.__name__ if self._bursts else "ext_proc"
        command = module_command(module, "--listen", listen, "--xds", self.client_address)
        command += ("--metrics", ",".join(self._pages), "--id", "picker-1")
        command += ("--workers", str(self._workers), "--transport", self._transport)
        env = patient_picker.environment() if self._bursts else service_environment()
        await self.supervisor.start(PICKER, command, env)

    def ask(
        self, headers: Any = None, path: str = GENERATE, body: object = None
    ) -> asyncio.Task[tuple[int, Any]]:
        """Send a request; the task returns status and headers of the answer.

        One that has waited for as long as the first fleet allows comes again: where other processes
        compute, a test may take longer than that.
        """
        sent_body = {"text_input": "x"} if body is None else body
        url, clock = f"http://{self.listener}{path}", asyncio.get_running_loop().time

        async def sent() -> tuple[int, Any]:
            while True:
                came = clock()
                async with self.http.post(url, json=sent_body, headers=headers) as answer:
                    await answer.read()
                if answer.status != 429 or clock() - came < MAX_WAIT_S:
                    return answer.status, answer.headers

        return asyncio.create_task(sent())

    async def count(self, name: str, **labels: str) -> float:
        """Return a metric of the picker, over all workers."""
        found = [await metric(self.http, page, name, **labels) for page in self._pages]
        return sum(found)

    async def waiting(self, count: int) -> bool:
        """Wait until so many requests wait in the picker."""

        async def look() -> bool:
            return await self.count("tidegate_picker_waiting") == count

        return await eventually(look)

    async def busy(self, count: int = 2) -> bool:
        """Wait until the replicas have so many requests."""

        async def look() -> bool:
            return sum(len(each.held) for each in self.replicas) == count

        return await eventually(look)
