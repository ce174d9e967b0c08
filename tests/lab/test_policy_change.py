"""A change of a pool's policy under traffic keeps the picker's state."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator

import pytest
import tritonclient.grpc.aio as triton_grpc

from support.traffic import GENERATE, eventually, fresh_prompt, llm_inputs, picker_state
from tidegate_api.names import SERVED_BY_HEADER


@pytest.fixture
async def stack(new_stack):
    """Return a stack whose language model uses round-robin."""
    return await new_stack(fleet={"pools": {"llm": {"routing": {"policy": "round-robin"}}}})


async def llm(http, stack):
    """Return the picker's state of the language model's pool."""
    return (await picker_state(http, stack))["router"]["pools"]["llm"]


async def ask(http, stack, prompt: str) -> tuple[str, int]:
    """Send a prompt; return the replica and the number of cached tokens."""
    body = {"text_input": prompt, "max_tokens": 1}
    async with http.post(stack.http_url + GENERATE, json=body) as answer:
        assert answer.status == 200
        return answer.headers[SERVED_BY_HEADER], (await answer.json(content_type=None))[
            "cached_tokens"
        ]


def known(pool, *names: str) -> dict[str, list[object]]:
    """Return selected numbers of each endpoint."""
    return {key: [each[name] for name in names] for key, each in pool["endpoints"].items()}


async def explained(stack, *options: str):
    """Run ``tidegate explain`` and return its JSON output."""
    command = [sys.executable, "-m", "tidegate", "explain", "-o", "json", "--pool", "llm"]
    process = await asyncio.create_subprocess_exec(
        *command,
        *("--picker", stack.picker_metrics),
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return json.loads(out)


async def test_a_new_policy_finds_ledger_and_index(http, stack):
    """Ledger and index are kept, and the next decision uses both."""
    prompt = fresh_prompt(6000)
    home, cached = await ask(http, stack, prompt)
    assert cached == 0
    close = asyncio.Event()

    async def requests() -> AsyncIterator[dict[str, object]]:
        yield {"model_name": "toy-llm", "inputs": llm_inputs(fresh_prompt(), 2)}
        await close.wait()

    async def two_in_flight() -> bool:
        pool = await llm(http, stack)
        return sum(each["in_flight"] for each in pool["endpoints"].values()) == 2

    async with triton_grpc.InferenceServerClient(stack.grpc_address) as client:
        streams = [client.stream_infer(requests()) for _ in range(2)]
        for answers in streams:
            await answers.__anext__()
        assert await eventually(two_in_flight)
        before = await llm(http, stack)
        assert before["policy"] == "round-robin"
        fleet = stack.read_fleet()
        for pool in fleet["pools"]:
            if pool["name"] == "llm":
                pool["routing"]["policy"] = "auto"
        stack.write_fleet(fleet)

        async def changed() -> bool:
            return (await llm(http, stack))["policy"] == "auto"

        assert await eventually(changed)
        after = await llm(http, stack)
        numbers = ("in_flight", "work_tokens", "index_blocks", "incarnation")
        assert known(after, *numbers) == known(before, *numbers)
        assert sum(each["in_flight"] for each in after["endpoints"].values()) == 2
        for _ in range(3):
            served, cached = await ask(http, stack, prompt)
            assert served == home
            assert cached > 0
        close.set()
        for answers in streams:
            assert [error async for _, error in answers] == [None]
    samples = await explained(stack, "--not", "r3", "--limit", "64")
    assert "round-robin" in {each["policy"] for each in samples}
    for each in samples:
        assert each["why_not"]["answer"].startswith("it belongs to another variant")


async def test_a_learned_policy_begins_where_auto_is(http, stack):
    """A learned policy starts with the decisions of ``auto`` and learns from those it took."""
    fleet = stack.read_fleet()
    for pool in fleet["pools"]:
        if pool["name"] == "llm":
            pool["routing"]["policy"] = "learned"
    stack.write_fleet(fleet)

    async def changed() -> bool:
        return (await llm(http, stack))["policy"] == "learned"

    assert await eventually(changed)
    prompt = fresh_prompt(6000)
    served = {(await ask(http, stack, prompt))[0] for _ in range(4)}
    assert len(served) == 1

    async def learned() -> bool:
        # Fewer are decided where a replica was silent or ramping, and fewer are samples where a
        # busy picker heard of the end of a request before gRPC said that its reply was sent.
        (learning,) = (await llm(http, stack))["learning"]
        samples, decided = learning["samples"], learning["decided"]
        return 0 < samples <= decided and (learning["state"], learning["open"]) == ("shadow", 0)

    assert await eventually(learned), json.dumps((await llm(http, stack))["learning"])
