"""A real stack that finds its replicas in sources, and its load."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import grpc

from support.churn_replicas import GENERATE, NUMBER
from support.replicas import PATIENT
from tidegate.stack.local import CONTROL_SERVER, LocalStack
from tidegate.stack.tritons.replica import TritonReplica
from tidegate_api.admin.v1 import admin_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from support.churn_replicas import Driver


@dataclass
class Load:
    """Requests on some connections, each sequential."""

    url: str
    connections: int = 6
    pause_s: float = 0.05
    answered: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Number of a request -> what became of it, and when."""
    slowest_s: float = 0.0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._run(n)) for n in range(self.connections)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, which: int) -> None:
        timeout = aiohttp.ClientTimeout(total=60)
        turn = 0
        async with aiohttp.ClientSession(timeout=timeout) as http:
            while True:
                turn += 1
                number = f"{which}-{turn}"
                body = {"text_input": f"{number} " * 20, "max_tokens": 1}
                began = time.monotonic()
                try:
                    async with http.post(
                        self.url + GENERATE, json=body, headers={NUMBER.decode(): number}
                    ) as answer:
                        said = await answer.text()
                        if answer.status == 200:
                            self.answered += 1
                        else:
                            reason = answer.headers.get("x-tidegate-reason")
                            self.failed[number] = f"{began:.2f}: {answer.status} {reason} {said}"
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    self.failed[number] = f"{began:.2f}: {type(error).__name__} {error}"
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                await asyncio.sleep(self.pause_s)


class ChurnStack(LocalStack):
    """Control server, picker and Envoy as processes; the control server finds the replicas.

    Args:
        drivers: The sources of the pool.
        dns: ``ip:port`` of the name server.
        state: Folder of the control server's revisions.
    """

    def __init__(self, drivers: Sequence[Driver], dns: str, state: Path) -> None:
        self._dns = dns
        names: list[dict[str, Any]] = []
        sources: list[dict[str, Any]] = []
        for driver in drivers:
            given = driver.settings()
            names += given.get("endpoints", [])
            sources += given.get("endpoints_from", [])

        def change(fleet: dict[str, Any]) -> None:
            fleet["pickers"]["timeout"] = PATIENT
            (pool,) = fleet["pools"]
            pool |= {
                "variants": [{"name": "stable"}],
                "endpoints": names,
                "endpoints_from": sources,
                "membership": {"hold": "8s", "drain": "20s", "damping": "2s"},
                "slow_start": {"window": "1s"},
                "health": {"interval": "500ms", "timeout": PATIENT, "unhealthy_after": 1},
            }

        (known, *_) = (each for driver in drivers for each in driver.listed.values())
        first = TritonReplica(
            name=known.name,
            http=known.address,
            grpc="127.0.0.1:1",
            metrics="127.0.0.1:1",
            variant="stable",
            models={"toy-llm": ("1",)},
        )
        super().__init__(replicas=[first], models=("toy-llm",), fleet=change, state=state)

    async def _launch_service(self, name: str, module: str, *flags: str, **more: Any) -> None:
        if name == CONTROL_SERVER:
            flags = (*flags, "--dns", self._dns)
        await super()._launch_service(name, module, *flags, **more)

    async def restart_control_server(self, after_s: float) -> None:
        """Kill the control server; start it again."""
        await self.kill_control_server()
        await asyncio.sleep(after_s)
        await self.start_control_server()

    async def ask(self, method: str, request: Any) -> Any:
        """Ask the control server; ``None`` while it is away."""
        async with grpc.aio.insecure_channel(self.admin_address) as channel:
            stub = admin_pb2_grpc.AdminStub(channel)
            with contextlib.suppress(grpc.aio.AioRpcError):
                return await getattr(stub, method)(request, timeout=10)
        return None

    async def envoy_hosts(self) -> set[str]:
        """Return the addresses that Envoy has."""
        page = f"http://{self.envoy_admin}/clusters?format=json"
        async with aiohttp.ClientSession() as http, http.get(page) as answer:
            known = await answer.json(content_type=None)
        return {
            f"{at['address']}:{at['port_value']}"
            for cluster in known["cluster_statuses"]
            if cluster["name"] == "llm/stable/http"
            for at in (each["address"]["socket_address"] for each in cluster["host_statuses"])
        }

    async def picker_endpoints(self) -> dict[str, Any]:
        """Return the picker's endpoints, by id."""
        page = f"http://{self.picker_metrics}/debug/state"
        async with aiohttp.ClientSession() as http, http.get(page) as answer:
            state = await answer.json(content_type=None)
        return dict(state["router"]["pools"]["llm"]["endpoints"])
