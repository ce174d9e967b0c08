"""Bodies above the limit that a picker starts with reach it, over both transports."""

from __future__ import annotations

import orjson
import pytest

from support.sockets import Raw, head
from support.traffic import GENERATE, fresh_prompt, metric


@pytest.mark.parametrize("transport", ["grpc", "nghttp2"])
async def test_a_body_of_the_pools_size_is_read(http, lend_once, new_stack, transport: str) -> None:
    """The picker's limit follows ``routing.max_body``: 6 MB of 8 are decided on."""
    routing = {"max_body": 8 * 2**20}
    fleet = {"pools": {"llm": {"routing": routing}}}
    if transport == "grpc":
        stack = await lend_once(body="full", fleet=fleet)
    else:
        stack = await new_stack(body="full", fleet=fleet, transport=transport)
    body = orjson.dumps({"text_input": fresh_prompt(), "max_tokens": 1}) + b" " * 6_000_000
    names = ("tidegate_picker_picks_total", "tidegate_picker_errors_total")
    picks, errors = [await metric(http, stack.picker_metrics, name) for name in names]
    async with Raw(stack.http_address) as raw:
        await raw.send(head(GENERATE, f"content-length: {len(body)}"), body)
        assert await raw.status() == 200
    after = [await metric(http, stack.picker_metrics, name) for name in names]
    assert after == [picks + 1, errors]
