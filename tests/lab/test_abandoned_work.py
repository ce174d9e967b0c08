"""Work that a real Triton still does for a client that has left counts as load."""

from __future__ import annotations

import asyncio
import contextlib

from support.traffic import GENERATE, eventually, fresh_prompt, metric

STAYS_S = 1.0
"""How long the client waits; its request takes longer."""
TOKENS = 4000


async def leave(http, url: str) -> None:
    """Send a request and leave before its answer."""

    async def ask() -> None:
        body = {"text_input": fresh_prompt(8), "max_tokens": TOKENS}
        async with http.post(url, json=body) as answer:
            await answer.read()

    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ask(), STAYS_S)


async def test_a_unary_request_whose_client_left_is_charged_for_a_while(http, stack):
    """Triton goes on with it; the charge ends although nothing more is heard of it."""

    async def open_charges() -> float:
        return await metric(http, stack.picker_metrics, "tidegate_picker_abandoned")

    async def charged() -> bool:
        return await open_charges() == 1

    async def ended() -> bool:
        return await open_charges() == 0

    await leave(http, stack.http_url + GENERATE)
    assert await eventually(charged)
    assert await eventually(ended)
