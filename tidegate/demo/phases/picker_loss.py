"""Phase: the picker is killed under traffic; Envoy continues without it until it restarts."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import aiohttp

from tidegate.demo.clients import AnswerError, fetch_text
from tidegate.demo.counters import read_picks
from tidegate.demo.phases.losses import MAX_S, TICK_S, stateless_traffic
from tidegate.demo.report import PhaseFinding, judge

if TYPE_CHECKING:
    from tidegate.demo.report import DemoVerdict
    from tidegate.demo.scene import Scene

TITLE: Final = "the loss of the picker fails no request"
SHARE: Final = 5
"""A step of the phase has `--requests` / SHARE requests."""


async def run(scene: Scene) -> PhaseFinding:
    """Kill the picker, continue without it, restart it and wait for its first pick."""
    step = max(1, scene.requests // SHARE)
    async with stateless_traffic(scene) as traffic:
        await traffic.progress(step)
        picks_before = await _picks(scene)
        asked = [traffic.tally.asked]
        await scene.stack.kill_picker()
        await traffic.progress(step)
        asked.append(traffic.tally.asked)
        start = time.perf_counter()
        await scene.stack.start_picker()
        picks_after = await _first_pick(scene)
        smart_s = time.perf_counter() - start
        await traffic.progress(step)
        picks_after = await _picks(scene) or picks_after
    return PhaseFinding(
        TITLE,
        ("when", "#requests", "#picks of the picker"),
        (
            ("before", asked[0], picks_before),
            ("without a picker", asked[1] - asked[0], None),
            ("after its start", traffic.tally.asked - asked[1], picks_after),
        ),
        assess(picks_before, picks_after, traffic.tally.problems()),
        note=(
            f"{traffic.tally.asked} requests in all, {traffic.tally.failed} failed; first pick "
            f"{smart_s * 1000:.0f} ms after the picker's start"
        ),
    )


def assess(before: int | None, after: int | None, problems: list[str]) -> DemoVerdict:
    """Pass iff no request failed and the picker picked before the kill and after the restart."""
    found = list(problems)
    if not before:
        found.append("the picker had picked nothing before it was killed")
    if not after:
        found.append(f"the picker picks nothing {MAX_S:g} s after its start")
    return judge(found, "0 requests failed without the picker; it picks again")


async def _picks(scene: Scene) -> int | None:
    try:
        return read_picks(await fetch_text(scene.pages, scene.picker_url + "/metrics"))
    except (aiohttp.ClientError, AnswerError, TimeoutError):
        return None


async def _first_pick(scene: Scene) -> int | None:
    end = time.monotonic() + MAX_S
    while time.monotonic() < end:
        picks = await _picks(scene)
        if picks:
            return picks
        await asyncio.sleep(TICK_S)
    return None
