"""Suite ``real``: load on real Triton replicas with ``toy-llm``, by policy and with Envoy alone.

Conversations with blocks of 16 tokens, as in the toy model, are sent with ``generate_stream`` in an
open loop. Nothing is emulated, so times are wall seconds.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

import orjson

from bench.emulator.fleet import ReplicaAddresses
from bench.fleet_model import ENGINE, prompt, small
from bench.load.plan import LoadPlan
from bench.load.process import run_load
from bench.peers import contenders
from bench.simulate.workload import arrivals
from bench.suites.summary import served
from bench.suites.workloads import http_request
from tidegate.stack.fleet import LLM_MODEL
from tidegate.stack.local import LocalStack
from tidegate.stack.tritons.fleet import Tritons

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.simulate.workload import Job
    from bench.suites.context import Context

REPLICAS: Final = 2
RATE: Final = 22.0
"""Requests per second: about two thirds of the capacity of two replicas."""
WARMUP: Final = 0.2
SLO_S: Final = 0.5
PATH: Final = f"/v2/models/{LLM_MODEL}/generate_stream"
POLICIES: Final = ("auto", "round-robin", "least-in-flight")


def requests(jobs: Sequence[Job], salt: str) -> list[bytes]:
    """Return the HTTP requests of jobs."""
    return [
        http_request(
            PATH,
            orjson.dumps(
                {"text_input": prompt(job, salt), "max_tokens": job.output_tokens, "stream": True}
            ),
            job.session,
        )
        for job in jobs
    ]


async def run(context: Context) -> dict[str, Any]:
    """Run each policy, then Envoy alone, on the same replicas; each run has its own prompts."""
    count, policies = int(RATE * context.pick(8, 30)), context.policies or POLICIES
    workload = small("sessions", count)
    rows = []
    # One more replica than is used, because the last of several is the canary.
    async with Tritons(REPLICAS + 1, models=(LLM_MODEL,)) as tritons:
        for seed in range(context.seeds):
            at = arrivals(workload, RATE, Random(seed))  # noqa: S311 - runs must repeat
            for name in (*policies, *contenders.ENVOYS[:1]):
                context.say(f"real: {name}")
                sent = requests(workload.jobs, f"{seed}{name}")
                row = {"contender": name, "seed": seed}
                if name in policies:
                    row |= await _tidegate(tritons, name, at, sent)
                else:
                    row |= await _envoy(tritons, name, at, sent)
                rows.append(row)
    return {"replicas": REPLICAS, "rate": RATE, "requests": count, "slo_s": SLO_S, "rows": rows}


async def _tidegate(
    tritons: Tritons, policy: str, at: list[float], sent: list[bytes]
) -> dict[str, Any]:
    block_chars = 4 * ENGINE.block_tokens
    routing = {
        "policy": policy,
        "block_chars": block_chars,
        "index_blocks": ENGINE.cache_blocks,
    }
    async with LocalStack(
        tritons=tritons, models=(LLM_MODEL,), fleet={"pools": {"llm": {"routing": routing}}}
    ) as stack:
        return await _load(stack.http_address, at, sent)


async def _envoy(tritons: Tritons, name: str, at: list[float], sent: list[bytes]) -> dict[str, Any]:
    places = [
        ReplicaAddresses(each.name, each.http, each.grpc, "")
        for each in tritons.replicas
        if each.variant == "stable"
    ]
    async with contenders.envoy(name, places, 2, f"/v2/models/{LLM_MODEL}/ready") as running:
        return await _load(running.address, at, sent)


async def _load(address: str, at: list[float], sent: list[bytes]) -> dict[str, Any]:
    plan = LoadPlan(address, which=range(len(sent)), at=at, requests=sent)
    return served(await run_load(plan), WARMUP, 1.0, SLO_S)
