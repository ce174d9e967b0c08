"""Emulated replicas as child processes, with operations for failures.

Each replica is a process, so that it can be killed, suspended and slowed like a machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Self

import aiohttp

from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.processes.waiting import http_ok, wait_until
from tidegate.stack.runfolder import RunFolder
from tidegate_common.children import module_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.engine import EngineConfig

START_S: Final = 60.0
_CALL: Final = aiohttp.ClientTimeout(total=5.0)


@dataclass(frozen=True, slots=True)
class ReplicaAddresses:
    """Listen addresses of one replica, each ``ip:port``."""

    name: str
    http: str
    grpc: str
    control: str


class EmulatedFleet:
    """Running replicas; an async context manager.

    Args:
        count: Number of replicas.
        scale: Emulated seconds per second.
        page: Kind of the metrics page.
        grpc: Whether to serve KServe gRPC as well.
        cache_blocks: Size of each cache, blocks.
        early_headers: Whether streams begin with their headers at once, not with the first token.
        cache_planned: Whether prompts share blocks that a step is planned to fill.
        engine: Parameters of the engines, but for the two above; ``None`` = the usual ones.
        config: What Triton's API tells of the model (``bench.emulator.http.CONFIGS``).
    """

    def __init__(
        self,
        count: int,
        *,
        scale: float,
        page: str = "vllm",
        grpc: bool = False,
        cache_blocks: int = 3_000,
        early_headers: bool = False,
        cache_planned: bool = True,
        engine: EngineConfig | None = None,
        config: str = "",
    ) -> None:
        self._count = count
        self._flags = (
            *("--scale", f"{scale}", "--page", page, "--cache-blocks", f"{cache_blocks}"),
            *(("--early-headers",) if early_headers else ()),
            *(() if cache_planned else ("--no-cache-planned",)),
            *(() if engine is None else ("--engine", json.dumps(asdict(engine)))),
            *(("--config", config) if config else ()),
        )
        self._grpc = grpc
        self._exit = AsyncExitStack()
        self.places: Sequence[ReplicaAddresses] = ()

    async def __aenter__(self) -> Self:
        """Start all replicas and wait until they respond.

        Raises:
            CrashError: A replica ended; the message contains the end of its log.
        """
        async with AsyncExitStack() as exit_:
            run = exit_.enter_context(RunFolder.create())
            ports = exit_.enter_context(HeldPorts())
            self._http = await exit_.enter_async_context(aiohttp.ClientSession())
            self._supervisor = Supervisor(run.logs)
            exit_.push_async_callback(self._supervisor.stop)
            self.places = [
                ReplicaAddresses(f"e{number}", ports.address(), ports.address(), ports.address())
                for number in range(1, self._count + 1)
            ]
            for place in self.places:
                flags = ("--http", place.http, "--control", place.control, *self._flags)
                grpc = ("--grpc", place.grpc) if self._grpc else ()
                await self._supervisor.start(
                    place.name,
                    module_command("bench.emulator", *flags, *grpc),
                    service_environment(),
                )
            for place in self.places:
                await self._ready(place)
            self._exit = exit_.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop all replicas."""
        for place in self.places:  # a suspended process does not handle SIGTERM
            if self._supervisor.running(place.name):
                self._signal(place.name, signal.SIGCONT)
        await self._exit.aclose()

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the running replicas."""
        running = [place.name for place in self.places if self._supervisor.running(place.name)]
        return [self._supervisor.pid(name) for name in running]

    async def stats(self) -> dict[str, dict[str, float]]:
        """Return the counters of each replica that responds."""
        answers = await asyncio.gather(*(self._call(each, "stats") for each in self.places))
        return {
            place.name: got
            for place, got in zip(self.places, answers, strict=True)
            if got is not None
        }

    async def reset(self) -> None:
        """Reset all caches, counters and speeds."""
        for verb in ("speed/1", "reset"):
            await asyncio.gather(*(self._call(each, verb) for each in self.places))

    async def renew(self, names: Iterable[str]) -> None:
        """Restart replicas at once: they lose caches, counters and requests, but no time."""
        await asyncio.gather(*(self._call(self._place(name), "reset") for name in names))

    async def slow(self, name: str, speed: float) -> None:
        """Set the speed of a replica as a factor on its rates."""
        await self._call(self._place(name), f"speed/{speed}")

    async def kill(self, name: str) -> None:
        """Send SIGKILL to a replica."""
        await self._supervisor.kill(name)

    async def restart(self, name: str) -> None:
        """Restart a killed replica with an empty cache and wait until it responds."""
        await self._supervisor.restart(name)
        await self._ready(self._place(name))

    def hang(self, name: str) -> None:
        """Suspend a replica's process: connections stay open without responses."""
        self._signal(name, signal.SIGSTOP)

    def wake(self, name: str) -> None:
        """Resume a suspended replica."""
        self._signal(name, signal.SIGCONT)

    # --- Internals ------------------------------------------------------------------------------

    def _signal(self, name: str, sig: signal.Signals) -> None:
        os.kill(self._supervisor.pid(name), sig)

    def _place(self, name: str) -> ReplicaAddresses:
        return next(place for place in self.places if place.name == name)

    async def _ready(self, place: ReplicaAddresses) -> None:
        await wait_until(
            lambda: http_ok(self._http, f"http://{place.http}/health"),
            f"replica {place.name}",
            timeout_s=START_S,
            supervisors=(self._supervisor,),
        )

    async def _call(self, place: ReplicaAddresses, verb: str) -> dict[str, float] | None:
        try:
            url = f"http://{place.control}/{verb}"
            async with self._http.get(url, timeout=_CALL) as answer:
                counters: dict[str, float] = await answer.json()
                return counters
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
