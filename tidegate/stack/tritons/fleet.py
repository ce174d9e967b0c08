"""A group of Triton replicas that several stacks can share."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, Self

import aiohttp

from tidegate.stack.fleet import CANARY_VERSION, LLM_MODEL, STABLE_VERSION
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.processes.waiting import http_ok, wait_until
from tidegate.stack.runfolder import RunFolder
from tidegate.stack.tritons import replica as triton
from tidegate.stack.tritons.replica import MODELS, TritonReplica

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tidegate.stack.processes.supervisor import Crash

READY_TIMEOUT_S: Final = 90.0
"""Time limit for a replica to become ready, seconds; one starts in about 3 s on an idle machine."""
_ABORTED: Final = "lock_exception"
"""In the log of a Triton that aborts itself because a model's process did not run for about a
second while it loaded, as on a busy machine (triton-inference-server/server#5949)."""


class Tritons:
    """Replicas ``r1`` to ``rN``; an async context manager.

    One that aborts itself because a model's process had no CPU is started again.

    The last of several is the canary (version 2 of the language model); the others serve
    version 1.

    Args:
        count: Number of replicas, at least 1.
        models: Models that each replica serves.
        env: Additional environment, such as ``{"TOY_LLM_TIME_SCALE": "0.1"}``.
        run: Run folder; default: a new one.
        source: Folder of the models; default: those of the project.
        on_progress: Called with ``(step, detail)`` as replicas become ready.

    Raises:
        ValueError: ``count`` is below 1.
    """

    def __init__(
        self,
        count: int = 3,
        *,
        models: Sequence[str] = MODELS,
        env: Mapping[str, str] | None = None,
        run: RunFolder | None = None,
        source: Path | None = None,
        on_progress: Callable[[str, str], None] | None = None,
    ) -> None:
        if count < 1:
            raise ValueError(f"{count} replicas; there must be at least 1")
        self._count = count
        self._models = tuple(models)
        self._env = dict(env or {})
        self._given_run = run
        self._source = source
        self._on_progress = on_progress
        self._exit = AsyncExitStack()
        self.replicas: tuple[TritonReplica, ...] = ()
        """The replicas, once started."""

    async def __aenter__(self) -> Self:
        """Start all replicas and wait until all models are ready.

        Raises:
            ExtraMissingError: Triton is not installed.
            CrashError: A replica crashed during its start.
            StackError: A replica was not ready in time.
        """
        installation = triton.find_triton()
        async with AsyncExitStack() as exit_:
            self._run = self._given_run or exit_.enter_context(RunFolder.create())
            triton.sweep_shared_memory(self._run.path.parent)
            ports = exit_.enter_context(HeldPorts())
            self._http = await exit_.enter_async_context(aiohttp.ClientSession())
            self.supervisor = Supervisor(self._run.logs, on_exit=self._exited)
            self.supervisor.keep_running(self._started_again, lambda crash: _ABORTED in crash.tail)
            exit_.push_async_callback(self.supervisor.stop)
            self.replicas = plan_replicas(self._count, self._models, ports)
            backends = triton.prepare_backends(self._run, installation)
            for replica in self.replicas:
                repository = triton.prepare_repository(self._run, replica, self._source)
                prefix = triton.shared_memory_prefix(self._run, replica.name)
                await self.supervisor.start(
                    replica.name,
                    triton.triton_command(installation, replica, repository, backends, prefix),
                    triton.triton_environment(installation, replica, self._env),
                    group=True,
                    # Its Python stubs look for packages in the current folder first.
                    cwd=self._run.path,
                )
            await asyncio.gather(*(self.wait_ready(replica.name) for replica in self.replicas))
            self._exit = exit_.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop all replicas."""
        await self._exit.aclose()

    @property
    def run(self) -> RunFolder:
        """Run folder with the replicas' logs."""
        return self._run

    def replica(self, name: str) -> TritonReplica:
        """Return a replica by name.

        Raises:
            KeyError: No replica has that name.
        """
        for replica in self.replicas:
            if replica.name == name:
                return replica
        raise KeyError(name)

    async def kill(self, name: str, sig: signal.Signals | None = None) -> None:
        """Send a signal (default SIGKILL) to a replica's group and wait until it has ended."""
        if sig is None:
            await self.supervisor.kill(name)
        else:
            await self.supervisor.kill(name, sig)

    async def restart(self, name: str) -> None:
        """Restart a replica on its addresses and wait until its models are ready."""
        await self.supervisor.restart(name)
        await self.wait_ready(name)

    async def wait_ready(self, name: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until each model of a replica is ready."""
        replica = self.replica(name)
        for url in replica.ready_urls():
            await wait_until(
                lambda url=url: http_ok(self._http, url),  # type: ignore[misc]  # a loop's value
                f"replica {name}",
                timeout_s=timeout_s,
                supervisors=(self.supervisor,),
            )
        if self._on_progress is not None:
            self._on_progress("triton", f"{name} serves {describe(replica)} at {replica.http}")

    def _started_again(self, crash: Crash) -> None:
        if self._on_progress is not None:
            text = f"{crash.name} aborted itself, as a model's process had no CPU; it starts again"
            self._on_progress("triton", text)

    def _exited(self, name: str) -> None:
        triton.remove_shared_memory(self._run, name)


def plan_replicas(count: int, models: Sequence[str], ports: HeldPorts) -> tuple[TritonReplica, ...]:
    """Return ``r1`` to ``rN`` with free addresses; the last of several is the canary."""
    replicas = []
    for number in range(1, count + 1):
        canary = number == count and count > 1
        version = CANARY_VERSION if canary else STABLE_VERSION
        replicas.append(
            TritonReplica(
                name=f"r{number}",
                http=ports.address(),
                grpc=ports.address(),
                metrics=ports.address(),
                variant="canary" if canary else "stable",
                models={
                    model: (version if model == LLM_MODEL else STABLE_VERSION,) for model in models
                },
            )
        )
    return tuple(replicas)


def describe(replica: TritonReplica) -> str:
    """Return the models and versions that a replica serves, for a progress line."""
    return ", ".join(f"{model} v{'+'.join(versions)}" for model, versions in replica.models.items())
