"""Who is to blame, by a real Envoy's log: callers eject no replica, failing to everybody does."""

from __future__ import annotations

import asyncio

from support.replicas import Replica, stack_over
from support.traffic import GENERATE, fresh_prompt, metric

MISTAKE, DEADLY = "whatever it says", "the bytes of death"
ATTEMPTS = "tidegate_picker_attempts_total"
EJECTIONS = "tidegate_picker_ejections_total"
SLOW_CHECKS = {"interval": "60s", "timeout": "20s", "unhealthy_after": 10}
TIMES = 24
FLUSHED_S = 0.6
"""Envoy holds log entries back for 0.2 s."""
MORE = {"health": SLOW_CHECKS, "routing": {"refuse_deadly": False}}
"""Each copy of a request that breaks connections must reach replicas, so none may be refused."""


def replicas() -> list[Replica]:
    """Return three replicas that fail on some requests, as all of them do."""
    return [
        Replica(f"r{number}", fails_on=MISTAKE.encode(), breaks_on=DEADLY.encode())
        for number in range(3)
    ]


async def ask(http, stack, session, text=None):
    """Send a request of a session; return its status."""
    sent = {"text_input": text or fresh_prompt(64), "max_tokens": 2}
    headers = {"tidegate-session": session}
    async with http.post(stack.http_url + GENERATE, json=sent, headers=headers) as answer:
        await answer.read()
        return answer.status


async def beside_others(http, stack, name, text):
    """Send requests of a caller, or of many, beside those of honest ones, who must be served."""
    for turn in range(TIMES):
        _, *honest = await asyncio.gather(
            ask(http, stack, name.format(turn), text),
            *(ask(http, stack, f"honest-{turn % 7}-{n}") for n in range(3)),
        )
        assert honest == [200] * 3


async def test_callers_eject_no_replica(http, demo_extra):  # noqa: ARG001 - skips without extra
    """Mistakes that the picker cannot see and requests that break connections, by one and many."""
    async with stack_over(*replicas(), more=MORE) as stack:
        for text in (MISTAKE, DEADLY):
            for name in ("one", "many-{}"):
                await beside_others(http, stack, name, text)
            await asyncio.sleep(FLUSHED_S)
            assert await metric(http, stack.picker_metrics, EJECTIONS) == 0, text
        blamed = {
            blame: await metric(http, stack.picker_metrics, ATTEMPTS, blame=blame)
            for blame in ("request", "replica", "none")
        }
        assert blamed["request"] >= 2 * 2 * TIMES, "each that broke connections, twice"
        assert blamed["replica"] >= TIMES, "an error says nothing more by itself"
        assert blamed["none"] >= 4 * 3 * TIMES


async def test_our_own_timeouts_eject_no_replica(http, demo_extra):  # noqa: ARG001 - skips
    """Honest long requests under a short timeout of the route."""
    made = replicas()
    timeouts = {"request": "0.3s"}
    async with stack_over(*made, more={"health": SLOW_CHECKS, "timeouts": timeouts}) as stack:
        for replica in made:
            replica.hold_s = 0.6
        for turn in range(6):
            statuses = await asyncio.gather(*(ask(http, stack, f"{turn}-{n}") for n in range(4)))
            assert statuses == [504] * 4
        await asyncio.sleep(FLUSHED_S)
        assert await metric(http, stack.picker_metrics, EJECTIONS) == 0
        assert await metric(http, stack.picker_metrics, ATTEMPTS, blame="us") >= 24


async def test_a_replica_that_fails_everybody_is_ejected(http, demo_extra):  # noqa: ARG001 - skips
    """After about as many failures as there must be in a row, and what the log holds back."""
    made = replicas()
    async with stack_over(*made, more=MORE) as stack:
        for turn in range(30):
            assert await ask(http, stack, f"before-{turn}") == 200
        made[0].status = 500
        failed = 0
        for turn in range(200):
            failed += await ask(http, stack, f"after-{turn}") == 500
            if await metric(http, stack.picker_metrics, EJECTIONS):
                break
            await asyncio.sleep(0.05)
        assert await metric(http, stack.picker_metrics, EJECTIONS) == 1
        assert failed <= 20
