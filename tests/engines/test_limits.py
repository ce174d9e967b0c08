"""What a real vLLM runs at once becomes its limit, and the rest waits in the picker."""

from __future__ import annotations

import asyncio
import random

import pytest

from engines.asking import ids, measured
from engines.lab import SEQUENCES
from engines.stacks import stack_of
from support.traffic import eventually, metric, picker_state

pytestmark = pytest.mark.timeout(1800)
CALLERS = 48
TOKENS = 120
"""Of an answer: the callers keep both engines full for longer than a reading is old."""


@pytest.fixture
async def stack(lab):
    """Run a stack with nothing set but the engines and their pages."""
    async with stack_of(lab, events=False) as running:
        yield running


async def test_an_engines_limit_is_what_it_runs_and_one_more(lab, stack):
    """``max-num-seqs`` is told nowhere: it is seen where requests wait for room."""
    body = {"model": "tiny", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    url = f"{stack.http_url}/v1/completions"
    chance, done = random.Random(4), asyncio.Event()
    statuses: list[int] = []

    async def call() -> None:
        while not done.is_set():
            async with lab.http.post(url, json={**body, "prompt": ids(chance, 20)}) as answer:
                await answer.read()
                statuses.append(answer.status)

    async def limits() -> list[tuple[int, str]]:
        endpoints = (await picker_state(lab.http, stack))["router"]["pools"]["llm"]["endpoints"]
        told = [limit for each in endpoints.values() for limit in each["limits"].values()]
        return [(each["slots"], each["slots_by"]) for each in told]

    async def known() -> bool:
        return await limits() == [(SEQUENCES, "observed")] * len(lab.engines)

    async def all_wait_here() -> bool:
        pages = [each.address for each in lab.engines]
        waits = [await metric(lab.http, page, "vllm:num_requests_waiting") for page in pages]
        runs = [await metric(lab.http, page, "vllm:num_requests_running") for page in pages]
        held = (await picker_state(lab.http, stack))["router"]["queue"]["waiting"]
        return max(waits) <= 1 and min(runs) >= SEQUENCES - 1 and held > len(pages)

    callers = [asyncio.create_task(call()) for _ in range(CALLERS)]
    try:
        assert await eventually(known), await limits()
        assert await eventually(all_wait_here)
    finally:
        done.set()
        await asyncio.gather(*callers)
    measured("limits: answers", {each: statuses.count(each) for each in sorted(set(statuses))})
    assert set(statuses) <= {200, 429}
    assert statuses.count(200) > CALLERS
