"""Rollouts of two gateways under load: processes in place of pods, stopped by the manifests' hooks.

A pod has an Envoy and a `tidegate gateway`; pickers stop by themselves. Clients open connections to
the Envoys in ``in_service``, as through a Service; a stopped one leaves it while its hook runs.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import orjson
import yaml

from support.crowd import CONTROL, Connection, Crowd
from tidegate.stack.addresses import GatewayAddresses
from tidegate.stack.commands import gateway
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.waiting import wait_until
from tidegate_common.children import module_command

if TYPE_CHECKING:
    from tidegate.stack.runfolder import RunFolder

MANIFESTS = Path(__file__).resolve().parents[2] / "deploy/kubernetes"
PODS = {f"envoy-{n}": (f"envoy-{n}", f"gateway-{n}") for n in (1, 2)}
"""Processes of the pods with an Envoy, by its name, in the order in which they start."""
PICKERS = {f"envoy-{n}": f"picker-{n}" for n in (1, 2)}
"""The picker that each Envoy has been started with; both ask both."""
QUESTION = "/v2"
LEARNS_S = 0.5
"""Time after which clients open no further connections to an Envoy that stops, seconds."""


def stop_hook() -> list[str]:
    """Return the preStop command of the pods with an Envoy; only one container has one."""
    pods = [
        made["spec"]["template"]["spec"]
        for made in yaml.safe_load_all((MANIFESTS / "edge.yaml").read_text())
        if made["kind"] in {"Deployment", "StatefulSet"}
    ]
    (hook,) = (
        each["lifecycle"]["preStop"]["exec"]["command"]
        for pod in pods
        for each in (*pod.get("initContainers", ()), *pod["containers"])
        if "lifecycle" in each
    )
    return list(hook)


class Rollout(Crowd):
    """Control server, two gateways and replicas; an async context manager.

    Args:
        folder: Where the fleet file and the revisions are.
        stream_s: Length of an answer of the pool ``talk``, in seconds.
        pause: Replaces the hooks' ``--pause``; ``None`` = they run as they stand.
    """

    def __init__(self, folder: Path, stream_s: float, pause: float | None = None) -> None:
        super().__init__(folder, stream_s)
        self._pause = pause
        self.in_service: list[str] = [*PODS]

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exit_:
            ports = exit_.enter_context(HeldPorts())
            self._gateways = {
                f"gateway-{n}": GatewayAddresses(*(ports.address() for _ in range(5)))
                for n in (1, 2)
            }
            await super().__aenter__()
            self._ports = exit_.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__(*_)
        await self._ports.aclose()

    def first_fleet(self) -> dict[str, Any]:
        """Return the fleet with both gateways."""
        http = [each.http for each in self._gateways.values()]
        grpc = [each.grpc for each in self._gateways.values()]
        return super().first_fleet() | {"gateway": {"http": http, "grpc": grpc}}

    async def _start(self, run: RunFolder) -> None:
        await super()._start(run)
        for name, addresses in self._gateways.items():
            command = module_command(*gateway(addresses, self.ads, name))
            await self.supervisor.start(name, command, service_environment())

    async def any_connection(self) -> Connection:
        """Connect to an Envoy that serves."""
        return await self.connect(random.choice(self.in_service))

    async def ready(self, envoy: str) -> None:
        """Wait until an Envoy serves, with both pickers, and finds a gateway."""
        await super().ready(envoy)
        await wait_until(
            lambda: self._asks_a_gateway(envoy),
            "gateway",
            timeout_s=60,
            supervisors=(self.supervisor,),
        )

    async def _asks_a_gateway(self, envoy: str) -> str | None:
        reader, writer = await self.connect(envoy)
        try:
            writer.write(f"GET {QUESTION} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            line = (await reader.readline()).decode()
        finally:
            writer.close()
        return None if line.startswith("HTTP/1.1 200 ") else line

    async def roll(self, envoy: str) -> None:
        """Stop a pod with an Envoy as the kubelet does, and start it again.

        The hook runs first. Then the sidecars get SIGTERM, the last one first.
        """
        stopping = asyncio.create_task(self._hook(envoy))
        await asyncio.sleep(LEARNS_S)
        self.in_service.remove(envoy)
        await stopping
        for name in reversed(PODS[envoy]):
            await self.supervisor.kill(name, signal.SIGTERM)
        for name in reversed(PODS[envoy]):
            await self.supervisor.restart(name)
        await self.ready(envoy)
        self.in_service.append(envoy)

    async def _hook(self, envoy: str) -> None:
        program, verb, *words = stop_hook()
        assert (program, verb) == ("tidegate", "envoy-stop")
        own = {"--admin": self._pages[envoy]} | (
            {} if self._pause is None else {"--pause": str(self._pause)}
        )
        given = [
            f"{option}={own.get(option, value)}"
            for option, _, value in (each.partition("=") for each in words)
        ]
        task = f"stop-{envoy}"
        await self.supervisor.start(
            task, module_command("tidegate", verb, *given), service_environment()
        )
        self.supervisor.expect_end(task)
        await self.supervisor._children[task].watch
        said = self.supervisor.log(task).read_text()
        assert self.supervisor._children[task].process.returncode == 0, f"{envoy}: {said}"

    async def roll_picker(self, envoy: str) -> None:
        """Stop the picker beside an Envoy by SIGTERM, as its own pod is, and start it again."""
        await self.supervisor.kill(PICKERS[envoy], signal.SIGTERM)
        await self.supervisor.restart(PICKERS[envoy])
        await self.ready(envoy)

    async def roll_control_server(self) -> None:
        """Stop the control server by SIGTERM, and start it again."""
        await self.supervisor.kill(CONTROL, signal.SIGTERM)
        await self.supervisor.restart(CONTROL)
        await self.acknowledged()


@dataclass
class Asks:
    """Short requests, one after another on connections that last until an answer closes them."""

    rollout: Rollout
    path: str
    body: bytes = b""
    at_once: int = 3
    pause_s: float = 0.2
    answered: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    _last: bool = False
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self.at_once)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._last = True
        await asyncio.gather(*self._tasks)

    async def _work(self) -> None:
        while not self._last:
            reader, writer = await self.rollout.any_connection()
            try:
                while not self._last and await self._ask(reader, writer):
                    pass
            finally:
                writer.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Ask once, after a pause; return whether the connection goes on."""
        await asyncio.sleep(self.pause_s)
        method = "POST" if self.body else "GET"
        top = f"{method} {self.path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(self.body)}\r\n"
        try:
            writer.write(f"{top}\r\n".encode() + self.body)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            body = await reader.readexactly(length)
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            self.wrong[repr(error)] += 1
            return False
        if head.startswith("http/1.1 200 "):
            self.answered += 1
        else:
            self.wrong[f"{head} {body[:200]!r}"] += 1
        return "connection: close" not in head


def asking(rollout: Rollout) -> tuple[Asks, Asks]:
    """Return clients of a pool and of the gateways."""
    body = orjson.dumps({"text_input": "once " * 20, "max_tokens": 1})
    return Asks(rollout, "/v2/models/toy-llm/generate", body), Asks(rollout, QUESTION, at_once=1)
