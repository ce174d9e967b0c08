"""A stopped Triton process: it accepts connections and answers nothing."""

from __future__ import annotations

import os
import signal

from support.traffic import GENERATE, GENERATE_STREAM, fresh_prompt

BOUND_S = 3.0
"""Bound on a first answer, seconds; Tritons on a busy machine answer within it."""


async def test_others_answer_what_a_stopped_triton_does_not(http, new_stack, tritons):
    """Streamed or not: at the bound, as it is stopped until all are answered."""
    pool = {
        "timeouts": {"first_answer": f"{BOUND_S}s", "first_answer_least": 0},
        # Neither checks nor ejection take the stopped process out during the test.
        "health": {"interval": "60s", "timeout": "20s"},
        "outlier": {"frozen_after": 0},
    }
    stack = await new_stack(models=("toy-llm",), fleet={"pools": {"llm": pool}})
    stopped = tritons.supervisor.pid(stack.replicas[0].name)
    page = f"http://{stack.envoy_admin}/stats?format=json&filter=upstream_rq_per_try_timeout$"

    async def ended_at_the_bound() -> int:
        async with http.get(page) as answer:
            return sum(each["value"] for each in (await answer.json(content_type=None))["stats"])

    os.kill(stopped, signal.SIGSTOP)
    try:
        for number in range(60):  # the picker draws among idle replicas
            if number >= 12 and await ended_at_the_bound():
                break
            path = GENERATE_STREAM if number % 2 else GENERATE
            sent = {"text_input": fresh_prompt(64), "max_tokens": 2}
            async with http.post(stack.http_url + path, json=sent) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert await ended_at_the_bound(), "the stopped replica was never picked"
