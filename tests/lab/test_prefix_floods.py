"""Floods of prompts that are refused: others' conversations stay where they are cached."""

from __future__ import annotations

import asyncio

from support.traffic import GENERATE, eventually, fresh_prompt, picker_state
from tidegate_api.names import SERVED_BY_HEADER

SESSIONS = 6
REFUSED = 480
INDEX_BLOCKS = 300
"""Per replica: the flood has ten times as many, and the sessions a tenth of it."""
CHARACTERS = 2_600
"""Ten blocks."""
WRONG = [1, 2]
"""A value of the wrong shape: Triton refuses the request with 400 before it runs."""


async def ask(http, stack, body):
    """Return status and replica of one request."""
    async with http.post(stack.http_url + GENERATE, json=body) as answer:
        await answer.read()
        return answer.status, answer.headers[SERVED_BY_HEADER]


async def open_prompts(http, stack):
    """Return the number of prompts without a verdict, and the provisional blocks."""
    state = (await picker_state(http, stack))["router"]
    counters, endpoints = state["counters"], state["pools"]["llm"]["endpoints"].values()
    return counters["provisional_prompts"], sum(each["provisional_blocks"] for each in endpoints)


async def test_a_refused_flood_moves_no_conversation(http, new_stack):
    """Nothing of what Triton refused with 400 is taken for cached, or evicts what is."""
    # One pool: of several that share a replica the largest bound counts.
    bound = {"pools": {"llm": {"routing": {"index_blocks": INDEX_BLOCKS}}}}
    # A stack of its own: another picker may have learned that a replica is slow.
    stack = await new_stack(models=("toy-llm",), fleet=bound)
    prompts = [fresh_prompt(CHARACTERS) for _ in range(SESSIONS)]
    homes = []
    for prompt in prompts:
        status, home = await ask(http, stack, {"text_input": prompt, "max_tokens": 1})
        assert status == 200
        homes.append(home)

    async def settled() -> bool:
        return await open_prompts(http, stack) == (0, 0)

    assert await eventually(settled)
    left = iter(range(REFUSED))
    statuses = set()

    async def flood() -> None:
        for _ in left:
            body = {"text_input": fresh_prompt(CHARACTERS), "max_tokens": WRONG}
            statuses.add((await ask(http, stack, body))[0])

    await asyncio.gather(*[flood() for _ in range(16)])
    assert statuses == {400}
    assert await eventually(settled)
    stayed = 0
    for prompt, home in zip(prompts, homes, strict=True):
        body = {"text_input": prompt + fresh_prompt(100), "max_tokens": 1}
        stayed += await ask(http, stack, body) == (200, home)
    assert stayed == SESSIONS
