"""Loads of models on real Tritons: a pool of them, and requests that must not notice."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

from support.traffic import eventually
from tidegate_api.admin.v1 import admin_pb2 as api

NAMES = ["served", "broken", "unlike", "heavy", "plain"]
SLOW = "slow-copy"
"""A copy of a Python model, which takes about a second to load."""
SLOWER = ('"batch_ms" value { string_value: "2" }', '"batch_ms" value { string_value: "300" }')
"""What is changed in it: a request takes as many milliseconds."""
PAUSE_S = 0.1
"""Between the requests of one client: they must not take the time of the processes under test."""
WAIT = api.ChangeOptions(author="test", wait=True, timeout_seconds=60)
FORCE = api.ChangeOptions(wait=True, timeout_seconds=60, force=True)


def pool_of(endpoints):
    """Return a pool of the models on all replicas."""
    return {
        "name": "loads",
        "match": {"models": [*NAMES, SLOW]},
        "variants": [{"name": "stable", "weight": 100}],
        "endpoints": [dict(each, variant="stable") for each in endpoints],
        "routing": {"policy": "least-in-flight"},
        "model_needs": [{"model": "heavy", "memory_mib": 2**31}],
    }


def with_loads(fleet):
    """Add the pool."""
    (vision,) = [pool for pool in fleet["pools"] if pool["match"]["models"] == ["vision"]]
    fleet["pools"].append(pool_of(vision["endpoints"]) | {"health": dict(vision["health"])})


async def having(http, tritons, model):
    """Return the replicas that have a model READY."""
    found = []
    for each in tritons.replicas:
        async with http.get(f"{each.http_url}/v2/models/{model}/ready") as answer:
            if answer.status == 200:
                found.append(each.name)
    return found


@asynccontextmanager
async def requests(stack, models):
    """Send requests for the model that is served throughout; none may fail."""
    answers: Counter[int] = Counter()
    failures: list[str] = []
    stopped = asyncio.Event()

    async def send() -> None:
        while not stopped.is_set():
            status, text = await models.ask(stack.http_url, "served")
            answers[status] += 1
            if status != 200:
                failures.append(f"{status} {text}")
            await asyncio.sleep(PAUSE_S)

    async def one() -> bool:
        return (await models.ask(stack.http_url, "served"))[0] == 200

    assert await eventually(one)
    tasks = [asyncio.create_task(send()) for _ in range(3)]
    try:
        yield
    finally:
        stopped.set()
        await asyncio.gather(*tasks)
    assert not failures, failures
    assert answers[200]
