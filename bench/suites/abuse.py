"""Suite ``abuse``: honest clients beside one that misbehaves, on real Tritons with ``toy-llm``.

The honest clients hold conversations in an open loop at half of the capacity, first alone and then
beside each kind of abuse in ``bench.load.abuse``. Goodput is the share of honest requests whose
first token came in time; failed ones are late. A replica that died in a run is counted and is
started again for the next. The long form adds Envoy's own least request on the same replicas.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from bench.emulator.fleet import ReplicaAddresses
from bench.fleet_model import small
from bench.load.abuse import ABUSES, run_abuse
from bench.load.plan import LoadPlan
from bench.load.process import run_load
from bench.peers import contenders
from bench.simulate.workload import arrivals
from bench.suites.real import requests
from bench.suites.summary import served
from tidegate.stack.fleet import LLM_MODEL
from tidegate.stack.local import LocalStack
from tidegate.stack.tritons.fleet import Tritons

if TYPE_CHECKING:
    from bench.suites.context import Context

REPLICAS: Final = 2
RATE: Final = 16.0
"""Honest requests per second: about half of the capacity of two replicas."""
WARMUP: Final = 0.1
SLO_S: Final = 0.5
ALONE: Final = "none"
TIDEGATE: Final = "tidegate"


async def run(context: Context) -> dict[str, Any]:
    """Run all kinds of abuse against Tidegate, then against Envoy alone."""
    count = int(RATE * context.pick(6, 20))
    workload = small("sessions", count)
    names = context.pick((TIDEGATE,), (TIDEGATE, contenders.ENVOYS[0]))
    rows = []
    # One more replica than is used, because the last of several is the canary.
    async with Tritons(REPLICAS + 1, models=(LLM_MODEL,)) as tritons:
        for seed in range(context.seeds):
            at = arrivals(workload, RATE, Random(seed))  # noqa: S311 - runs must repeat
            for name in names:
                for abuse in (ALONE, *ABUSES):
                    context.say(f"abuse: {name}, {abuse}")
                    sent = requests(workload.jobs, f"{seed}{name}{abuse}")
                    row = await _run(
                        tritons, name, abuse, LoadPlan("", range(count), at=at, requests=sent)
                    )
                    rows.append({"contender": name, "abuse": abuse, "seed": seed, **row})
    return {"replicas": REPLICAS, "rate": RATE, "requests": count, "slo_s": SLO_S, "rows": rows}


async def _run(tritons: Tritons, name: str, abuse: str, plan: LoadPlan) -> dict[str, Any]:
    for replica in tritons.replicas:
        tritons.supervisor.expect_end(replica.name)
    if name == TIDEGATE:
        async with LocalStack(tritons=tritons, models=(LLM_MODEL,)) as stack:
            found = await _load(stack.http_address, abuse, plan)
    else:
        places = [
            ReplicaAddresses(each.name, each.http, each.grpc, "")
            for each in tritons.replicas
            if each.variant == "stable"
        ]
        ready = f"/v2/models/{LLM_MODEL}/ready"
        async with contenders.envoy(name, places, 2, ready) as running:
            found = await _load(running.address, abuse, plan)
    dead = await _revive(tritons)
    return {**found, "died": dead}


async def _revive(tritons: Tritons) -> int:
    """Start dead replicas again; return how many there were."""
    dead = [each.name for each in tritons.replicas if not tritons.supervisor.running(each.name)]
    for each in dead:
        await tritons.restart(each)
    return len(dead)


async def _load(address: str, abuse: str, plan: LoadPlan) -> dict[str, Any]:
    plan = LoadPlan(address, plan.which, at=plan.at, requests=plan.requests)
    beside = None if abuse == ALONE else lambda: run_abuse(address, ABUSES[abuse])
    return served(await run_load(plan, beside), WARMUP, 1.0, SLO_S)
