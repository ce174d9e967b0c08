"""Who is compared: Tidegate, Envoy alone and the routers of other projects, each as a process.

Each is started fresh for a run on the same replicas, and speaks OpenAI's API to the same clients.
Peers run with their own defaults, which is what their READMEs start them with: policy, replicas and
ports are given, and a log level at which a request writes nothing, as with Tidegate. Where replicas
are to fail they get Envoy's health checks too: by default they look once a minute and believe the
third failure, so no fault of these runs would ever be seen.
"""

from __future__ import annotations

import json
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from bench.emulator.dialects import MODEL
from bench.overhead import cpu_seconds, rss_mb
from bench.peers.environment import ROOT
from bench.peers.envoys import bootstrap
from bench.workers import family
from tidegate.stack.envoy import envoy_binary, envoy_command, envoy_environment
from tidegate.stack.local import ENVOY, PICKER, LocalStack
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.processes.waiting import http_ok, wait_until
from tidegate.stack.runfolder import RunFolder
from tidegate.stack.tritons.replica import TritonReplica
from tools.compiling import is_current

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from bench.emulator.fleet import ReplicaAddresses
    from bench.peers.environment import Environment

CHAT: Final = "/v1/chat/completions"
READY_S: Final = 60.0
BUILD: Final = ROOT / "build" / "compiled"
"""Where ``make compiled`` puts an installation of the checkout."""
TIDEGATE: Final = "tidegate"
WORKERS: Final = "tidegate-2-workers"
"""The same with two processes of the picker."""
GRPC: Final = "tidegate-grpc"
"""The same with grpcio instead of what pickers take by default where it is installed."""
COMPILED: Final = "tidegate-compiled"
"""The same with a picker from ``build/compiled``; takes part where that is of this very source."""
ENVOYS: Final = ("envoy-least-request", "envoy-round-robin", "envoy-ring-hash")
_POLICIES: Final = ("cache_aware", "power_of_two", "round_robin")
_ROUTERS: Final = {
    # peer: module, and its word for a quiet log
    "vllm": ("vllm_router.launch_router", "warning"),
    "sglang": ("sglang_router.launch_router", "warn"),
}
CHECKS: Final = (
    *("--health-check-interval-secs", "1", "--health-check-timeout-secs", "1"),
    *("--health-failure-threshold", "2", "--health-success-threshold", "1"),
)
"""Health checks as ``envoys.py`` has them."""
VLLM: Final = tuple(f"vllm-{policy}" for policy in _POLICIES)
SGLANG: Final = tuple(f"sglang-{policy}" for policy in _POLICIES)
NAMES: Final = (TIDEGATE, WORKERS, GRPC, COMPILED, *VLLM, *SGLANG, *ENVOYS)
PACKAGE_OF: Final = {
    **dict.fromkeys(VLLM, "vllm-router"),
    **dict.fromkeys(SGLANG, "sglang-router"),
}


@dataclass(slots=True)
class Running:
    """A contender that serves."""

    name: str
    address: str
    """``ip:port`` for clients."""
    pids: dict[str, int] = field(default_factory=dict)
    """Its processes on the way of a request; their children belong to them."""

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds that each has used, with its children."""
        return {name: sum(map(cpu_seconds, family(pid))) for name, pid in self.pids.items()}

    def rss_mb(self) -> dict[str, float]:
        """Return the resident megabytes of each, with its children."""
        return {name: sum(map(rss_mb, family(pid))) for name, pid in self.pids.items()}


def present(names: Iterable[str], environment: Environment) -> tuple[str, ...]:
    """Return those of ``names`` that can be started here."""
    without = set() if is_current(ROOT, BUILD) else {COMPILED}
    return tuple(
        name
        for name in names
        if name not in without and PACKAGE_OF.get(name) not in environment.missing
    )


def start(
    name: str,
    places: Sequence[ReplicaAddresses],
    environment: Environment,
    routing: Mapping[str, Any],
    *,
    concurrency: int = 1,
    checks: bool = False,
) -> AbstractAsyncContextManager[Running]:
    """Start a contender.

    Args:
        name: One of ``NAMES``.
        places: The replicas.
        environment: Where peers are installed.
        routing: What Tidegate's pool is to set in ``routing``.
        concurrency: Envoy's worker threads, Tidegate's Envoy included.
        checks: Peers check health as often as Envoy does; otherwise as often as they do by default.

    Raises:
        ValueError: There is no such contender.
    """
    if name in (TIDEGATE, WORKERS, GRPC, COMPILED):
        return _tidegate(name, places, routing, concurrency)
    if name in ENVOYS:
        return envoy(name, places, concurrency)
    if name in PACKAGE_OF:
        return _router(name, places, environment, checks=checks)
    raise ValueError(f"no contender {name!r}; there are {', '.join(NAMES)}")


def router_command(
    name: str,
    python: str,
    address: str,
    metrics: str,
    places: Sequence[ReplicaAddresses],
    *,
    checks: bool = False,
) -> tuple[str, ...]:
    """Return the command line of a peer.

    Args:
        name: A key of ``PACKAGE_OF``.
        python: The peers' interpreter.
        address: ``ip:port`` to serve on.
        metrics: ``ip:port`` of its own metrics.
        places: The replicas.
        checks: With ``CHECKS``.
    """
    peer, _, policy = name.partition("-")
    module, quiet = _ROUTERS[peer]
    host, _, port = address.rpartition(":")
    return (
        *(python, "-P", "-m", module, "--host", host, "--port", port, "--policy", policy),
        *("--worker-urls", *(f"http://{place.http}" for place in places)),
        *("--prometheus-port", metrics.rpartition(":")[2], "--log-level", quiet),
        *(CHECKS if checks else ()),
    )


@asynccontextmanager
async def _tidegate(
    name: str, places: Sequence[ReplicaAddresses], routing: Mapping[str, Any], concurrency: int
) -> AsyncIterator[Running]:
    replicas = [
        TritonReplica(
            name=place.name,
            http=place.http,
            grpc=place.grpc,
            metrics=place.http,
            models={MODEL: ("1",)},
        )
        for place in places
    ]
    async with LocalStack(
        replicas=replicas,
        models=(MODEL,),
        fleet=_fleet(routing),
        concurrency=concurrency,
        workers=2 if name == WORKERS else 1,
        transport="grpc" if name == GRPC else "auto",
        picker_from=BUILD if name == COMPILED else None,
    ) as stack:
        pids = {ENVOY: stack.pid(ENVOY), PICKER: stack.pid(PICKER)}
        yield Running(name, stack.http_address, pids)


def _fleet(routing: Mapping[str, Any]) -> Callable[[dict[str, Any]], None]:
    def change(fleet: dict[str, Any]) -> None:
        buffer = max(65_536, int(routing.get("peek_bytes", 0)))
        fleet["listener"] = {"address": fleet["listener"]["address"], "buffer_bytes": buffer}
        pool = fleet["pools"][0]
        pool["match"]["paths"] = [CHAT, "/v1/completions"]
        pool["variants"] = [{"name": "stable", "weight": 1}]
        pool["routing"] = {"policy": "auto", "body": "peek", **routing}
        most = {"max_connections": 4096, "max_pending": 4096, "max_requests": 4096}
        pool["circuit_breaker"] = most
        for endpoint in pool["endpoints"]:
            del endpoint["grpc"]

    return change


@asynccontextmanager
async def envoy(
    name: str, places: Sequence[ReplicaAddresses], concurrency: int, ready: str | None = None
) -> AsyncIterator[Running]:
    """Start an Envoy alone.

    Args:
        name: One of ``ENVOYS``.
        places: The replicas.
        concurrency: Its worker threads.
        ready: Path that answers 200 once a request would be served; by default a chat is tried.
    """
    with RunFolder.create() as run, HeldPorts() as ports:
        listener, admin = ports.address(), ports.address()
        wanted = bootstrap(name.removeprefix("envoy-"), listener, admin, places)
        config = run.write("envoy.json", json.dumps(wanted))
        supervisor = Supervisor(run.logs)
        try:
            command = envoy_command(envoy_binary(), config, concurrency)
            await supervisor.start(ENVOY, command, envoy_environment())
            await _answers(listener, name, supervisor, ready)
            yield Running(name, listener, {ENVOY: supervisor.pid(ENVOY)})
        finally:
            await supervisor.stop()


@asynccontextmanager
async def _router(
    name: str, places: Sequence[ReplicaAddresses], environment: Environment, *, checks: bool
) -> AsyncIterator[Running]:
    with RunFolder.create() as run, HeldPorts() as ports:
        address, metrics = ports.address(), ports.address()
        supervisor = Supervisor(run.logs)
        python = str(environment.python)
        command = router_command(name, python, address, metrics, places, checks=checks)
        try:
            await supervisor.start("router", command, dict(os.environ))
            await _answers(address, name, supervisor)
            yield Running(name, address, {"router": supervisor.pid("router")})
        finally:
            await supervisor.stop()


async def _answers(
    address: str, name: str, supervisor: Supervisor, ready: str | None = None
) -> None:
    """Wait until a request gets its answer."""
    async with aiohttp.ClientSession() as session:

        async def look() -> str | None:
            if ready is not None:
                return await http_ok(session, f"http://{address}{ready}")
            return await _one(session, address)

        await wait_until(look, name, timeout_s=READY_S, supervisors=(supervisor,))


async def _one(session: aiohttp.ClientSession, address: str) -> str | None:
    missing = await http_ok(session, f"http://{address}/health")
    if missing is not None:
        return missing
    body = {"model": MODEL, "messages": [{"role": "user", "content": "ready?"}], "max_tokens": 1}
    try:
        timeout = aiohttp.ClientTimeout(total=5.0)
        url = f"http://{address}{CHAT}"
        async with session.post(url, json=body, timeout=timeout) as answer:
            text = (await answer.text())[:200]
            return None if answer.ok else f"{url} answers {answer.status}: {text}"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return f"{address}: {error or type(error).__name__}"
