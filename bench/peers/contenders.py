"""Contenders of the benchmark: Tidegate, Envoy alone and the routers of other projects.

Each contender is started as a process for a run, on the same replicas, and serves OpenAI's API to
the same clients. Peers run with the defaults of their READMEs: only policy, replicas, ports and a
log level without output per request, as for Tidegate, are set. In runs with faults they also get
Envoy's health checks: by default they check once a minute and eject after the third failure, so
they would not detect any fault of these runs.
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
from bench.peers import llm_d
from bench.peers.environment import LLM_D, ROOT
from bench.peers.environment import PICKER as LLM_D_PICKER
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
"""Target folder of ``make compiled``."""
TIDEGATE: Final = "tidegate"
WORKERS: Final = "tidegate-2-workers"
"""Tidegate with two picker processes."""
GRPC: Final = "tidegate-grpc"
"""Tidegate with the transport ``grpc`` instead of the picker's default."""
COMPILED: Final = "tidegate-compiled"
"""Tidegate with the picker of ``build/compiled``, if that was built from the current source."""
ENVOYS: Final = ("envoy-least-request", "envoy-round-robin", "envoy-ring-hash")
_POLICIES: Final = ("cache_aware", "power_of_two", "round_robin")
_ROUTERS: Final = {
    # peer: module, and log level without output per request
    "vllm": ("vllm_router.launch_router", "warning"),
    "sglang": ("sglang_router.launch_router", "warn"),
}
CHECKS: Final = (
    *("--health-check-interval-secs", "1", "--health-check-timeout-secs", "1"),
    *("--health-failure-threshold", "2", "--health-success-threshold", "1"),
)
"""Health checks as in ``envoys.py``."""
VLLM: Final = tuple(f"vllm-{policy}" for policy in _POLICIES)
SGLANG: Final = tuple(f"sglang-{policy}" for policy in _POLICIES)
NAMES: Final = (TIDEGATE, WORKERS, GRPC, COMPILED, *VLLM, *SGLANG, *llm_d.NAMES, *ENVOYS)
PACKAGE_OF: Final = {
    **dict.fromkeys(VLLM, "vllm-router"),
    **dict.fromkeys(SGLANG, "sglang-router"),
    **dict.fromkeys(llm_d.NAMES, LLM_D),
}


@dataclass(slots=True)
class Running:
    """A running contender."""

    name: str
    address: str
    """``ip:port`` for clients."""
    pids: dict[str, int] = field(default_factory=dict)
    """Process ids on the path of a request; their children count as well."""

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds of each process and its children."""
        return {name: sum(map(cpu_seconds, family(pid))) for name, pid in self.pids.items()}

    def rss_mb(self) -> dict[str, float]:
        """Return the resident memory of each process and its children, MB."""
        return {name: sum(map(rss_mb, family(pid))) for name, pid in self.pids.items()}


def present(names: Iterable[str], environment: Environment) -> tuple[str, ...]:
    """Return the contenders of ``names`` that are installed."""
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
    debug_headers: bool = False,
) -> AbstractAsyncContextManager[Running]:
    """Start a contender.

    Args:
        name: One of ``NAMES``.
        places: Addresses of the replicas.
        environment: Python environment of the peers.
        routing: Fields of ``routing`` in Tidegate's pool.
        concurrency: Number of worker threads of Envoy, also of Tidegate's.
        checks: Whether peers use ``CHECKS`` instead of their default health checks.
        debug_headers: Whether Tidegate's answers name the replica.

    Raises:
        ValueError: The contender is unknown.
    """
    if name in (TIDEGATE, WORKERS, GRPC, COMPILED):
        return _tidegate(name, places, routing, concurrency, debug_headers=debug_headers)
    if name in ENVOYS:
        return envoy(name, places, concurrency)
    if name in llm_d.NAMES:
        return _llm_d(name, places, concurrency)
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
        name: One of ``VLLM`` and ``SGLANG``.
        python: Python interpreter of the peers.
        address: Listen address, ``ip:port``.
        metrics: Address of its metrics, ``ip:port``.
        places: Addresses of the replicas.
        checks: Whether to use ``CHECKS``.
    """
    peer, _, policy = name.partition("-")
    module, quiet = _ROUTERS[peer]
    host, _, port = address.rpartition(":")
    return (
        *(python, "-m", module, "--host", host, "--port", port, "--policy", policy),
        *("--worker-urls", *(f"http://{place.http}" for place in places)),
        *("--prometheus-port", metrics.rpartition(":")[2], "--log-level", quiet),
        *(CHECKS if checks else ()),
    )


@asynccontextmanager
async def _tidegate(
    name: str,
    places: Sequence[ReplicaAddresses],
    routing: Mapping[str, Any],
    concurrency: int,
    *,
    debug_headers: bool,
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
        fleet=_fleet(routing, debug_headers=debug_headers),
        concurrency=concurrency,
        workers=2 if name == WORKERS else 1,
        transport="grpc" if name == GRPC else "auto",
        picker_from=BUILD if name == COMPILED else None,
    ) as stack:
        pids = {ENVOY: stack.pid(ENVOY), PICKER: stack.pid(PICKER)}
        yield Running(name, stack.http_address, pids)


def _fleet(routing: Mapping[str, Any], *, debug_headers: bool) -> Callable[[dict[str, Any]], None]:
    def change(fleet: dict[str, Any]) -> None:
        buffer = max(65_536, int(routing.get("peek_bytes", 0)))
        fleet["listener"] = {
            "address": fleet["listener"]["address"],
            "buffer_bytes": buffer,
            "debug_headers": debug_headers,
        }
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
        places: Addresses of the replicas.
        concurrency: Number of worker threads.
        ready: Path that returns 200 when requests are served; default: try a chat request.
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


@asynccontextmanager
async def _llm_d(
    name: str, places: Sequence[ReplicaAddresses], concurrency: int
) -> AsyncIterator[Running]:
    with RunFolder.create() as run, HeldPorts() as ports:
        listener, admin, grpc, health, metrics = (ports.address() for _ in range(5))
        listed = run.write("endpoints.json", json.dumps(llm_d.endpoints(places)))
        config = run.write("picker.json", json.dumps(llm_d.configuration(name, listed)))
        wanted = run.write("envoy.json", json.dumps(llm_d.bootstrap(listener, admin, grpc)))
        supervisor = Supervisor(run.logs)
        try:
            picker = llm_d.command(LLM_D_PICKER, config, grpc, health, metrics)
            await supervisor.start(PICKER, picker, dict(os.environ))
            command = envoy_command(envoy_binary(), wanted, concurrency)
            await supervisor.start(ENVOY, command, envoy_environment())
            await _answers(listener, name, supervisor)
            pids = {ENVOY: supervisor.pid(ENVOY), PICKER: supervisor.pid(PICKER)}
            yield Running(name, listener, pids)
        finally:
            await supervisor.stop()


async def _answers(
    address: str, name: str, supervisor: Supervisor, ready: str | None = None
) -> None:
    """Wait until a request succeeds."""
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
