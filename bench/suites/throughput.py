"""Suite ``throughput``: cost of a router with instant upstreams.

Eight instant upstreams, a closed loop of chat requests of 2 and 32 KB, contenders alternating over
several rounds. Measures requests/s, and CPU per request of the router's processes, of the load
client and of both. Prompts are conversations: each group of eight shares its first half, so that a
prefix tree or index has matches.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from bench.emulator.fleet import ReplicaAddresses
from bench.load.plan import LoadPlan
from bench.load.process import run_load
from bench.load.upstream import instant_upstreams
from bench.peers import contenders
from bench.suites.summary import distribution
from bench.suites.workloads import chat, http_request

if TYPE_CHECKING:
    from bench.suites.context import Context

UPSTREAMS: Final = 8
SIZES: Final = (2_048, 32_768)
CONNECTIONS: Final = 16
PROMPTS: Final = 512
QUICK: Final = (
    "tidegate",
    "tidegate-grpc",
    "tidegate-compiled",
    "vllm-cache_aware",
    "sglang-cache_aware",
    "envoy-least-request",
)


def prompts(size: int, seed: int) -> list[bytes]:
    """Return requests of about ``size`` bytes; each group of eight shares its first half."""
    rng = Random(seed)  # noqa: S311 - repeatable
    made, shared = [], ""
    for number in range(PROMPTS):
        if number % 8 == 0:
            shared = rng.randbytes(size // 4).hex()
        body = chat(shared + rng.randbytes(size // 4).hex(), stream=False)
        made.append(http_request(contenders.CHAT, body))
    return made


async def run(context: Context) -> dict[str, Any]:
    """Run all contenders; return one row per contender, size and round."""
    wanted = context.contenders or context.pick(QUICK, contenders.NAMES)
    names = contenders.present(wanted, context.environment)
    rounds, seconds = context.pick(3, 5), context.pick(1.2, 6.0)
    missing = dict(context.environment.missing)
    if contenders.COMPILED in wanted and contenders.COMPILED not in names:
        missing[contenders.COMPILED] = "build/compiled is not of this source; run `make compiled`"
        context.say(f"without {contenders.COMPILED}: {missing[contenders.COMPILED]}")
    rows = []
    async with instant_upstreams(UPSTREAMS) as addresses:
        places = [
            ReplicaAddresses(f"u{number}", address, address, "")
            for number, address in enumerate(addresses, 1)
        ]
        for turn in range(rounds):
            shift = turn % len(names)
            for name in (*names[shift:], *names[:shift]):
                context.say(f"throughput {turn + 1}/{rounds}: {name}")
                async with contenders.start(
                    name, places, context.environment, {}, concurrency=2
                ) as running:
                    rows += [await _measure(running, size, seconds, turn) for size in SIZES]
    return {
        "upstreams": UPSTREAMS,
        "connections": CONNECTIONS,
        "seconds": seconds,
        "rounds": rounds,
        "missing": missing,
        "rows": rows,
    }


async def _measure(
    running: contenders.Running, size: int, seconds: float, turn: int
) -> dict[str, Any]:
    sent = prompts(size, turn)
    which = range(len(sent))
    warm = LoadPlan(running.address, which, connections=CONNECTIONS, seconds=0.5, requests=sent)
    await run_load(warm)
    before = running.cpu()
    plan = LoadPlan(running.address, which, connections=CONNECTIONS, seconds=seconds, requests=sent)
    results = await run_load(plan)
    count = len(results.sent)
    cpu = {name: (used - before[name]) / count * 1e6 for name, used in running.cpu().items()}
    return {
        "contender": running.name,
        "bytes": size,
        "round": turn,
        "requests": count,
        "per_s": count / results.seconds,
        "ms": distribution(results.latencies(), 1000),
        "cpu_us": cpu,
        "cpu_us_all": sum(cpu.values()),
        "client_cpu_us": results.cpu_s / count * 1e6,
        "rss_mb": running.rss_mb(),
    }
