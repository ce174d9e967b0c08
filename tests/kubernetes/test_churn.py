"""Pods that come and go under load, through the whole admission and a real Envoy."""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import aiohttp
import pytest

from kubernetes.pods import PodsDriver
from support.churn import LEAST, Churn, run_events
from support.churn_replicas import GENERATE
from support.churn_sources import FileDriver
from support.churn_stack import ChurnStack, Load
from support.traffic import eventually
from tidegate.stack.processes.ports import HeldPorts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kubernetes.cluster import Cluster

EVENTS = int(os.environ.get("TIDEGATE_CHURN_EVENTS", "100"))
SEED = int(os.environ.get("TIDEGATE_CHURN_SEED", "17"))
pytestmark = pytest.mark.timeout(300 + 2 * EVENTS)


@pytest.fixture
async def ports() -> AsyncIterator[HeldPorts]:
    """Free ports."""
    with HeldPorts() as held:
        yield held


async def begun(driver: PodsDriver | FileDriver, count: int, rng: random.Random) -> None:
    """Start replicas and let the source list them."""
    for number in range(count):
        replica = await driver.make(number, rng)
        await replica.start()
        driver.listed[replica.name] = replica
    await driver.mend()


async def answers(load: Load, count: int) -> None:
    """Wait until so many more requests are answered."""
    wanted = load.answered + count

    async def came() -> bool:
        return load.answered >= wanted

    assert await eventually(came)


@pytest.mark.parametrize("other", ["alone", "with a file"])
async def test_no_request_fails_while_pods_change(
    cluster: Cluster, ports: HeldPorts, tmp_path: Path, other: str
) -> None:
    """The API server is killed, compacted and denies; in the end all have what is in it."""
    rng = random.Random(SEED)
    async with AsyncExitStack() as exit_:
        namespace = f"churn-{other[0]}"
        pods = await exit_.enter_async_context(PodsDriver(cluster, namespace, tmp_path, ports))
        drivers: list[PodsDriver | FileDriver] = [pods]
        if other != "alone":
            drivers.append(FileDriver(tmp_path / "replicas.yaml", ports))
        for driver in drivers:
            await begun(driver, LEAST + 2, rng)
        stack = ChurnStack(drivers, "127.0.0.1:1", tmp_path / "state")
        await exit_.enter_async_context(stack)
        load = await exit_.enter_async_context(Load(stack.http_url))
        churn = await exit_.enter_async_context(Churn(stack, drivers, rng))
        await run_events(churn, stack, EVENTS, lambda: rng.choice([0.01, 0.05, 0.1, 0.5]))
        await churn.settle(180)
        churn.write_figures(f"pods {other}", load)
        assert not churn.unexplained(load)
        assert not churn.faults
        assert load.answered > EVENTS


async def test_a_pod_joins_when_its_model_is_ready_and_leaves_when_it_is_idle(
    cluster: Cluster, ports: HeldPorts, tmp_path: Path
) -> None:
    """Asked, ramped in, used, drained: a request that it has when it is deleted is answered."""
    rng = random.Random(SEED)
    async with AsyncExitStack() as exit_:
        pods = await exit_.enter_async_context(PodsDriver(cluster, "admission", tmp_path, ports))
        await begun(pods, 2, rng)
        stack = await exit_.enter_async_context(
            ChurnStack([pods], "127.0.0.1:1", tmp_path / "state")
        )
        churn = await exit_.enter_async_context(Churn(stack, [pods], rng))
        load = await exit_.enter_async_context(Load(stack.http_url))
        late = await pods.make(9, rng)
        late.ready = False
        await late.start()
        pods.listed[late.name] = late
        status = "tidegate_xds_found_replicas"

        async def waits() -> bool:
            page = f"http://{stack.control_metrics}/metrics"
            async with aiohttp.ClientSession() as http, http.get(page) as answer:
                text = await answer.text()
            return f'{status}{{pool="llm",state="waiting"}} 1.0' in text

        assert await eventually(waits)
        assert late.address not in churn.found
        assert not late.answered
        late.ready, before = True, time.time()

        async def used() -> bool:
            return bool(churn.found.get(late.address)) and late.answered > 5

        assert await eventually(used)
        joined = (await stack.picker_endpoints())[late.name]["joined_unix_s"]
        assert joined is not None
        assert before - 5 < joined < time.time()
        late.released, quick = asyncio.Event(), set(late.open)

        async def holds() -> bool:
            return bool(late.open - quick)

        assert await eventually(holds)
        churn.leaving[late.address] = (pods.listed.pop(late.name), pods)

        async def drains() -> bool:
            return bool((await stack.picker_endpoints())[late.name]["draining"])

        assert await eventually(drains)
        await answers(load, 50)  # what was picked before has arrived
        received = late.answered + len(late.open)
        assert late.open - quick
        await answers(load, 50)
        assert late.answered + len(late.open) == received, "what drains gets no new request"
        late.released.set()

        async def gone() -> bool:
            return late.address not in churn.found and not late.alive

        assert await eventually(gone)
        assert late.answered == received
        assert not late.lost
        assert not load.failed
        assert not churn.faults
        async with aiohttp.ClientSession() as http:
            body = {"text_input": "x", "max_tokens": 1}
            async with http.post(stack.http_url + GENERATE, json=body) as answer:
                assert answer.status == 200
