"""Rollouts cut nothing: each part is stopped by its own hook, under load."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack

import pytest

from support.crowd import CHUNK_S, Talks
from support.rollouts import PODS, Rollout, asking

TURNS = int(os.environ.get("TIDEGATE_ROLLOUTS", "1"))
"""How often each part is rolled; 5 is the long form, with answers of 8 s."""
STREAM_S, PAUSE_S = (8.0, None) if TURNS > 1 else (1.5, 1.0)

pytestmark = [pytest.mark.timeout(120 + 90 * TURNS), pytest.mark.usefixtures("demo_extra")]


async def test_rolling_two_gateways_and_the_control_server_cuts_nothing(tmp_path) -> None:
    """Two Envoys with a gateway each, and both pickers, one after the other; nothing is lost."""
    async with AsyncExitStack() as exit_:
        rollout = await exit_.enter_async_context(Rollout(tmp_path, STREAM_S, PAUSE_S))
        short, questions = asking(rollout)
        for each in (short, questions):
            await exit_.enter_async_context(each)
        talks = Talks(rollout.any_connection, round(STREAM_S / CHUNK_S))
        await exit_.enter_async_context(talks)
        for _ in range(TURNS):
            for envoy in PODS:
                await rollout.roll(envoy)
                await rollout.roll_picker(envoy)
            await rollout.roll_control_server()
        await talks.finish()
    counts = f"{short.answered} requests, {questions.answered} questions, {talks.whole} long"
    print(f"rolled {TURNS} times: {counts} answers")  # noqa: T201 - figures
    assert not short.wrong
    assert not questions.wrong
    assert not talks.wrong
    assert min(short.answered, questions.answered) > 20
    assert talks.whole >= 3
