"""One client's requests beside everybody else's, on real Tritons: no other client is hurt.

The module has three replicas of its own, since a test that ends them would disturb the others'.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os

import pytest

from support.traffic import GENERATE, GENERATE_STREAM, Traffic, eventually, fresh_prompt
from support.traffic import picker_state as state_of
from tidegate.stack.tritons.fleet import Tritons

REPLICAS = 3
TIME_SCALE = "0.1"
MISTAKES: tuple[dict[str, object], ...] = (
    {"text_input": "x", "max_tokens": "many"},
    {"text_input": "x", "max_tokens": None},
    {"text_input": "x", "max_tokens": True},
    {"text_input": "x", "max_tokens": 1.5},
    {"text_input": "x", "max_tokens": [1]},
    {"text_input": "x", "max_tokens": {}},
    {"text_input": 5, "max_tokens": 1},
    {"text_input": None, "max_tokens": 1},
    {"text_input": {}, "max_tokens": 1},
    {"text_input": "x", "max_tokens": 1, "stream": "yes"},
    {"text_input": "x", "max_tokens": 1, "unknown": {"a": 1}},
    {"max_tokens": 1},
    {},
)
"""Readable mistakes; Triton 2.51 answers most of them with 500."""
TIMES = int(os.environ.get("TIDEGATE_MISTAKES", "50"))
"""How often each of them is sent."""


def honest() -> dict[str, object]:
    """Return a short request with a prompt that is in no cache."""
    return {"text_input": fresh_prompt(64), "max_tokens": 2}


@pytest.fixture(scope="module")
async def tritons(demo_extra):  # noqa: ARG001 - skips first
    """Run three stable replicas and a canary."""
    env = {"TOY_LLM_TIME_SCALE": TIME_SCALE}
    async with Tritons(REPLICAS + 1, models=("toy-llm",), env=env) as made:
        yield made


@pytest.fixture
async def stack(new_stack):
    """Run a stack whose rules for ejection are the defaults."""
    return await new_stack(models=("toy-llm",))


async def ejected(http, stack) -> list[str]:
    """Return the replicas with a condition, but those whose page was late on a busy machine."""
    state = await state_of(http, stack)
    endpoints = state["router"]["pools"]["llm"]["endpoints"]
    return [name for name, each in endpoints.items() if set(each["conditions"]) - {"silent"}]


async def send(http, stack, body, **headers) -> int:
    """Send one request and return its status."""
    async with http.post(stack.http_url + GENERATE, json=body, headers=headers) as answer:
        await answer.read()
        return answer.status


async def flood(http, stack, bodies, headers) -> list[int]:
    """Send requests from eight workers and return their statuses."""
    left = iter(bodies)

    async def work() -> list[int]:
        return [await send(http, stack, body, **headers(body)) for body in left]

    return list(itertools.chain(*await asyncio.gather(*(work() for _ in range(8)))))


@pytest.mark.parametrize("who", ["one-session", "one-sequence", "many-sessions"])
async def test_a_dozen_mistakes_eject_no_replica(http, stack, who):
    """Many of each readable mistake eject no replica, from any client; honest work goes on."""
    numbers = itertools.count()

    def headers(_: object) -> dict[str, str]:
        session = next(numbers) if who == "many-sessions" else 1
        return {"tidegate-session-id": f"s{session}"}

    def bodies():
        for number in range(TIMES * len(MISTAKES)):
            mistake = MISTAKES[number % len(MISTAKES)]
            more = {"sequence_id": 7} if who == "one-sequence" else {}
            yield {**mistake, **more}

    async with Traffic(http, stack.http_url + GENERATE, honest, workers=2, pause_s=0.02) as traffic:
        statuses = await flood(http, stack, bodies(), headers)
        assert not await ejected(http, stack)
    assert 500 in statuses
    assert not traffic.failures


async def test_wide_headers_eject_no_replica(http, stack):
    """Headers that an engine does not take are refused before a replica sees them."""
    async with Traffic(http, stack.http_url + GENERATE, honest, workers=2, pause_s=0.02) as traffic:
        statuses = [
            await send(http, stack, honest(), **{"x-wide": "w" * size})
            for size in (8_200, 16_000, 32_000)
            for _ in range(20)
        ]
        assert not await ejected(http, stack)
    assert set(statuses) <= {431}
    assert not traffic.failures


async def test_impatient_clients_eject_no_replica(http, stack):
    """Clients that leave honest long requests after a second say nothing about the replica."""
    body = {"text_input": fresh_prompt(400), "max_tokens": 4_000, "stream": True}

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            async with (
                asyncio.timeout(1.0),
                http.post(stack.http_url + GENERATE_STREAM, json=body) as answer,
            ):
                await answer.read()

    async with Traffic(http, stack.http_url + GENERATE, honest, workers=2, pause_s=0.02) as traffic:
        await asyncio.gather(*(leave() for _ in range(30)))
        assert not await ejected(http, stack)
    assert not traffic.failures


async def reads_of(http, stack, name) -> int:
    """Return how many requests Envoy has sent to a replica."""
    async with http.get(f"http://{stack.envoy_admin}/clusters?format=json") as page:
        clusters = json.loads(await page.read())["cluster_statuses"]
    (replica,) = (each for each in stack.replicas if each.name == name)
    _, _, port = replica.http.rpartition(":")
    return sum(
        int(stat.get("value", 0))
        for cluster in clusters
        for host in cluster.get("host_statuses", ())
        if host["address"]["socket_address"]["port_value"] == int(port)
        for stat in host["stats"]
        if stat["name"] == "rq_total"
    )


async def test_killing_two_of_three_refuses_no_innocent(http, tritons, new_stack):
    """With the default settings only those are lost that both dead replicas had read."""
    stack = await new_stack(models=("toy-llm",))

    async def long() -> tuple[int, str | None]:
        body = {"text_input": fresh_prompt(400), "max_tokens": 1200}
        async with http.post(stack.http_url + GENERATE, json=body) as answer:
            await answer.read()
            return answer.status, answer.headers.get("x-tidegate-reason")

    waiting = [asyncio.create_task(long()) for _ in range(40)]
    try:

        async def busy() -> bool:
            # All have been sent to a replica; the first one is the stack's own.
            return sum([await reads_of(http, stack, f"r{number}") for number in (1, 2, 3)]) > 40

        assert await eventually(busy)
        # A busy machine sees the last one begin after the first has ended.
        assert sum(not task.done() for task in waiting) >= 10
        first = await reads_of(http, stack, "r2")
        await tritons.kill("r1")
        await asyncio.sleep(0.3)
        await tritons.kill("r2")
        answers = await asyncio.gather(*waiting)
        moved = await reads_of(http, stack, "r2") - first
        again = [await send(http, stack, honest()) for _ in range(20)]
    finally:
        for name in ("r1", "r2"):
            if not tritons.supervisor.running(name):
                await tritons.restart(name)
    assert set(answers) <= {(200, None), (503, "reads-spent")}
    assert answers.count((503, "reads-spent")) <= moved
    assert again == [200] * 20
