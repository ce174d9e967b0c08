"""A replica's host that is cut off without a word: its connections break within the bound.

The host is a network namespace, so this needs Linux and root, and skips elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from support.partition import HOLD_HEADER, FarReplica, UnsupportedError
from support.replicas import Replica, stack_over
from support.traffic import GENERATE, eventually, fresh_prompt, picker_state

BOUND_S = 20.0
"""The user timeout; keepalive starts probing earlier and ends with it."""
SLACK_S = 6.0
"""The interval of the probes, and a busy machine."""
HEALTH = {"interval": "1s", "timeout": "1s", "unhealthy_after": 2}


@asynccontextmanager
async def far():
    """Run a replica that can be cut off."""
    replica = FarReplica("far")
    serving = replica.serve()
    try:
        await serving.__aenter__()
    except UnsupportedError as error:
        pytest.skip(f"no network namespace with a link of its own here: {error}")
    try:
        yield replica
    finally:
        await serving.__aexit__(None, None, None)


async def ask(http, stack, hold_s=0.0):
    """Send a request; return its status, its text and the seconds that it took."""
    begun = time.monotonic()
    body = {"text_input": fresh_prompt(64), "max_tokens": 2}
    headers = {HOLD_HEADER: str(hold_s)}
    async with http.post(stack.http_url + GENERATE, json=body, headers=headers) as answer:
        text = await answer.text()
        return answer.status, text, time.monotonic() - begun


async def in_flight(http, stack):
    """Return how many requests are in flight on the replica that can be cut off."""
    state = await picker_state(http, stack)
    return state["router"]["pools"]["llm"]["endpoints"]["far"]["in_flight"]


async def test_a_host_that_is_cut_off_costs_at_most_the_bound(http, demo_extra):  # noqa: ARG001 - skips first
    """Keepalive ends connections that wait for an answer, the user timeout those that write.

    Requests that the host had acknowledged, and those sent to it before a check has failed, are
    answered by the other replica after the bound; all others go on meanwhile.
    """
    async with far() as one, far() as other, asyncio.TaskGroup() as both:
        both.create_task(cut_off(http, one, acknowledged=True))
        both.create_task(cut_off(http, other, acknowledged=False))


async def cut_off(http, lost, *, acknowledged):
    """Cut a host off that has the requests or, if it has not ``acknowledged`` any, gets them."""
    async with stack_over(lost, Replica("near"), more={"health": HEALTH}) as stack:
        # Envoy keeps connections to both, one a request at a time.
        warm = await asyncio.gather(*(ask(http, stack, 0.2) for _ in range(16)))
        assert {text for status, text, _ in warm if status == 200} == {
            '{"text_output": "far"}',
            '{"text_output": "near"}',
        }
        if acknowledged:
            caught = [asyncio.create_task(ask(http, stack, 60.0)) for _ in range(16)]

            async def there() -> bool:
                return await in_flight(http, stack) >= 4

            assert await eventually(there)
            await asyncio.sleep(0.5)  # nothing shows here that the last ones have arrived
            await lost.cut()
        else:
            await lost.cut()
            caught = [asyncio.create_task(ask(http, stack)) for _ in range(16)]
        begun = time.monotonic()
        await asyncio.sleep(5.0)  # three failed checks
        later = [await ask(http, stack) for _ in range(30)]
        answers = await asyncio.gather(*caught)
        took = time.monotonic() - begun
    assert {(status, text) for status, text, _ in later} == {(200, '{"text_output": "near"}')}
    assert max(seconds for _, _, seconds in later) < 2.0
    assert {(status, text) for status, text, _ in answers} == {(200, '{"text_output": "near"}')}
    assert BOUND_S - SLACK_S < took < BOUND_S + SLACK_S  # it was the bound that ended them
