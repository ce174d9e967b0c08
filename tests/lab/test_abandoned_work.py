"""Work that a real Triton still does for a client that has left counts as load."""

from __future__ import annotations

import asyncio
import json
from functools import partial

from support.sockets import Raw, head
from support.traffic import GENERATE, eventually, fresh_prompt, metric, picker_state

STAYS_S = 1.0
"""How long clients stay, seconds; the request of the first takes longer."""
TOKENS = 4000


async def sent(http, stack) -> bool:
    """Return whether the picker counts a request."""
    return (await picker_state(http, stack))["router"]["counters"]["open_tickets"] == 1


async def leave(http, stack) -> None:
    """Send a request, and leave some time after a replica has it, before its answer."""

    async def ask() -> None:
        body = {"text_input": fresh_prompt(8), "max_tokens": TOKENS}
        async with http.post(stack.http_url + GENERATE, json=body) as answer:
            await answer.read()

    asking = asyncio.create_task(ask())
    assert await eventually(partial(sent, http, stack))
    await asyncio.sleep(STAYS_S)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_unary_request_whose_client_left_is_charged_for_a_while(http, stack):
    """Triton goes on with it; the charge ends although nothing more is heard of it."""

    async def open_charges() -> float:
        return await metric(http, stack.picker_metrics, "tidegate_picker_abandoned")

    async def charged() -> bool:
        return await open_charges() == 1

    async def ended() -> bool:
        return await open_charges() == 0

    await leave(http, stack)
    assert await eventually(charged)
    assert await eventually(ended)


async def test_half_an_upload_whose_client_left_is_not_charged(http, stack):
    """Triton begins nothing on it, however long its client stayed."""

    async def left() -> float:
        name = "tidegate_picker_feedback_entries_total"
        return await metric(http, stack.picker_metrics, name, outcome="left")

    async def told() -> bool:
        return await left() == before + 1

    before = await left()
    body = json.dumps({"text_input": fresh_prompt(2_000_000)}).encode()
    async with Raw(stack.http_address) as client:
        await client.send(head(GENERATE, f"content-length: {len(body)}"), body[:500_000])
        assert await eventually(partial(sent, http, stack))
        await asyncio.sleep(STAYS_S)
    assert await eventually(told)
    assert await metric(http, stack.picker_metrics, "tidegate_picker_abandoned") == 0
