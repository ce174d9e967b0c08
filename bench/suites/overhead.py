"""Suite ``overhead``: cost that the picker adds to Envoy, per body size and body mode.

Three instant upstreams behind one Envoy; a route without a picker is the reference. ``bare none``
and ``bare peek`` are the same routes of an Envoy with the same configuration and a bare picker
(``bare.py``): the picker's cost above them is that of its own code. ``policy envoy`` is the
route of ``none`` in a fleet whose pools have no picker (``routing.policy: envoy``).

The closed loop measures requests/s, CPU per request and memory. The open loop then sends at half of
the throughput of ``peek`` at that size, to every route at the same times, and measures the added
latency at 50 % load. The short form omits the bare routes in the open loop.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from bench.load.plan import LoadPlan
from bench.load.process import run_load
from bench.load.upstream import instant_upstreams
from bench.overhead import (
    POOL_MODES,
    TARGETS,
    UPSTREAMS,
    cpu_seconds,
    replicas,
    request_bytes,
    rss_mb,
)
from bench.suites.bare import MODES, bare_stack
from bench.suites.grpc_overhead import grpc_rows
from bench.suites.summary import distribution
from tidegate.stack.local import CONTROL_SERVER, ENVOY, PICKER, LocalStack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.load.plan import Results
    from bench.suites.bare import BareStack
    from bench.suites.context import Context

SIZES: Final = (2_048, 32_768, 262_144)
CONNECTIONS: Final = 8
LOAD: Final = 0.5
ALONE: Final = "envoy alone"
NO_PICKER: Final = "policy envoy"
Route = tuple["LocalStack | BareStack", str]
"""Stack with the Envoy, and the path."""
_NO_PICKER: Final = {"pools": {name: {"routing": {"policy": "envoy"}} for name in POOL_MODES}}
LOAD_OF: Final = "peek"
"""The route whose throughput sets the rate of the open loop."""


async def run(context: Context) -> dict[str, Any]:
    """Run both loops and return their rows."""
    rounds, seconds = context.pick(3, 5), context.pick(0.7, 3.0)
    change = {
        "pools": {
            name: {"routing": {"body": mode, "policy": "auto"}} for name, mode in POOL_MODES.items()
        }
    }
    closed: list[dict[str, Any]] = []
    opened: list[dict[str, Any]] = []
    async with (
        instant_upstreams(2 * UPSTREAMS) as addresses,
        LocalStack(replicas=replicas(addresses), fleet=change, concurrency=1) as stack,
        bare_stack(addresses) as bare,
        LocalStack(replicas=replicas(addresses), fleet=_NO_PICKER, concurrency=1) as unpicked,
    ):
        routes: dict[str, Route] = {name: (stack, path) for name, path in TARGETS.items()}
        routes[NO_PICKER] = (unpicked, TARGETS["none"])
        bares: dict[str, Route] = {f"bare {mode}": (bare, TARGETS[mode]) for mode in MODES}
        for size in SIZES:
            context.say(f"overhead: {size // 1024} KB, closed loop")
            rows = [
                await _closed(name, route, size, seconds, turn)
                for turn in range(rounds)
                for name, route in (routes | bares).items()
            ]
            closed += rows
            rate = LOAD * _mean([row["per_s"] for row in rows if row["target"] == LOAD_OF])
            context.say(f"overhead: {size // 1024} KB, open loop at {rate:.0f}/s")
            opened += [
                await _open(name, route, size, rate, 2 * seconds, turn)
                for turn in range(rounds)
                for name, route in (routes | context.pick({}, bares)).items()
            ]
        context.say("overhead: gRPC")
        grpc = [
            row
            for size in (2_048, 32_768)
            for row in await grpc_rows(stack, size, CONNECTIONS, seconds, rounds)
        ]
        memory = {name: rss_mb(stack.pid(name)) for name in (ENVOY, PICKER, CONTROL_SERVER)}
    return {
        "connections": CONNECTIONS,
        "seconds": seconds,
        "rounds": rounds,
        "load": LOAD,
        "closed": closed,
        "open": opened,
        "grpc": grpc,
        "rss_mb": memory,
    }


async def _closed(name: str, route: Route, size: int, seconds: float, turn: int) -> dict[str, Any]:
    stack, path = route
    plan = LoadPlan(
        stack.http_address,
        which=(0,),
        connections=CONNECTIONS,
        seconds=seconds,
        requests=[request_bytes(path, size)],
    )
    return {"target": name, "bytes": size, "round": turn, **await _measured(stack, plan)}


async def _open(
    name: str, route: Route, size: int, rate: float, seconds: float, turn: int
) -> dict[str, Any]:
    stack, path = route
    at = poisson(rate, seconds, turn)
    plan = LoadPlan(
        stack.http_address,
        which=[0] * len(at),
        at=at,
        requests=[request_bytes(path, size)],
    )
    return {"target": name, "bytes": size, "round": turn, **await _measured(stack, plan)}


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Return the arrivals of a Poisson process, seconds; deterministic for a seed."""
    rng = Random(seed)  # noqa: S311 - repeatable
    at, made = rng.expovariate(rate), []
    while at < seconds:
        made.append(at)
        at += rng.expovariate(rate)
    return made


async def _measured(stack: LocalStack | BareStack, plan: LoadPlan) -> dict[str, Any]:
    pids = {name: stack.pid(name) for name in (ENVOY, PICKER)}
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    results = await run_load(plan)
    count = len(results.sent)
    return {
        "requests": count,
        "per_s": count / results.seconds,
        "ms": distribution(results.latencies(), 1000),
        "cpu_us": {
            name: (cpu_seconds(pid) - before[name]) / count * 1e6 for name, pid in pids.items()
        },
        **_client(results, count),
    }


def _client(results: Results, count: int) -> dict[str, Any]:
    return {
        "client_cpu_us": results.cpu_s / count * 1e6,
        "lag_p99_ms": results.lag() * 1000,
        "errors": results.errors,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
