"""Two pickers over TLS and slow links decide as one, and the loss of one costs no request."""

from __future__ import annotations

import signal

import pytest

from support.identities import Machines
from support.secured_stack import GENERATE, Stack, secured_stack
from support.traffic import Traffic, eventually, fresh_prompt

LINKS_S = 0.02
pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("demo_extra")]


@pytest.fixture(scope="module")
async def stack(tmp_path_factory):
    """Run Envoy over two pickers, each of which sees a part of the requests."""
    machines = Machines(tmp_path_factory.mktemp("machines"))
    async with secured_stack(machines, "nghttp2", links_s=LINKS_S) as started:
        yield started


async def both(stack: Stack) -> list[dict]:
    """Return the debug pages of the pickers."""
    return [await stack.picker_state(page) for page in (stack.picker_page, stack.other_page)]


async def test_a_group_knows_what_each_was_sent_and_outlives_one(stack: Stack) -> None:
    """Both index all prompts; after ``kill -9`` of one no request fails, and the other goes on."""

    def body() -> dict:
        return {"text_input": fresh_prompt(2000), "max_tokens": 1}

    async def joined() -> bool:
        return all(one["workers"]["group"][0]["caught_up"] for one in await both(stack))

    async def same() -> bool:
        one, two = [each["router"]["counters"]["index_blocks"] for each in await both(stack)]
        return one == two > 0

    assert await eventually(joined)
    async with Traffic(stack.http, f"http://{stack.listener}{GENERATE}", body) as traffic:
        await traffic.more(60)
    assert all(one["workers"]["events_followed"] > 60 for one in await both(stack))
    assert await eventually(same)
    async with Traffic(stack.http, f"http://{stack.listener}{GENERATE}", body) as traffic:
        await traffic.more(20)
        await stack.supervisor.kill("picker-2", signal.SIGKILL)
        await traffic.more(60)

        async def gone() -> bool:
            (member,) = (await stack.picker_state())["workers"]["group"]
            return not member["caught_up"] and member["open_tickets"] == 0

        assert await eventually(gone)
        await traffic.more(20)
    assert traffic.failures == []
