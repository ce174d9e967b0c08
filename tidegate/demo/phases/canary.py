"""Phase: the canary weight changes under traffic; measures the share and the time to apply it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tidegate.demo.load import Tally, closed_loop
from tidegate.demo.report import PhaseFinding, judge, percent
from tidegate.demo.scene import CANARY, LLM_POOL, STABLE
from tidegate.demo.stats import CONFIDENCE, binomial_interval

if TYPE_CHECKING:
    from tidegate.demo.report import DemoVerdict
    from tidegate.demo.scene import Scene

TITLE: Final = "a canary receives its configured share"
ASKED_PERCENT: Final = 20
WORKERS: Final = 8
LEAD_REQUESTS: Final = 50
"""Requests answered before the weights change, so that traffic runs during the change."""
MAX_S: Final = 60.0


async def run(scene: Scene) -> PhaseFinding:
    """Set the canary to 20 % under traffic, count its requests, and reset the weight."""
    before, changing, after = Tally(), Tally(), Tally()
    current = before
    warm, stop = asyncio.Event(), asyncio.Event()

    async def ask(number: int) -> str:
        # A request counts in the tally that is current when it starts.
        mine = current
        if number >= LEAD_REQUESTS:
            warm.set()
        try:
            answer = await scene.clients.generate(f"Question {number}?", 1)
        except Exception as error:
            mine.fail(error)
            raise
        mine.by_replica[answer.replica] += 1
        if after.answered >= scene.requests:
            stop.set()
        return answer.replica

    loop = asyncio.create_task(closed_loop(ask, workers=WORKERS, stop=stop))
    try:
        async with asyncio.timeout(MAX_S):
            await warm.wait()
            current = changing
            result = await scene.operator.set_weights(
                LLM_POOL, {STABLE: 100 - ASKED_PERCENT, CANARY: ASKED_PERCENT}
            )
            current = after
            total = await loop
    finally:
        stop.set()
        await asyncio.gather(loop, return_exceptions=True)
        await scene.operator.set_weights(LLM_POOL, {STABLE: 100, CANARY: 0})
    hits = _canary(scene, after)
    interval = binomial_interval(hits, after.answered)
    return PhaseFinding(
        TITLE,
        ("when", "#requests", "#to the canary", "#share"),
        (
            ("weight 0", before.answered, _canary(scene, before), _share(scene, before)),
            (
                "during the change",
                changing.answered,
                _canary(scene, changing),
                _share(scene, changing),
            ),
            (f"weight {ASKED_PERCENT} %", after.answered, hits, _share(scene, after)),
        ),
        assess(_canary(scene, before), hits, after.answered, total.problems()),
        note=(
            f"acknowledged by {result.acked} of {result.clients} clients in "
            f"{result.elapsed_ms:.0f} ms over {', '.join(result.channels)}; the share's "
            f"{CONFIDENCE:.2%} interval is {percent(interval.low)} to {percent(interval.high)}"
        ),
    )


def assess(before_hits: int, hits: int, answered: int, problems: list[str]) -> DemoVerdict:
    """Pass iff no request came before the change and the set share is in the interval after it."""
    found = list(problems)
    if before_hits:
        found.append(f"{before_hits} requests reached the canary while its weight was 0")
    interval = binomial_interval(hits, answered)
    if ASKED_PERCENT / 100 not in interval:
        found.append(
            f"{percent(hits / answered)} reached the canary; {ASKED_PERCENT} % is outside "
            f"{percent(interval.low)} to {percent(interval.high)}"
        )
    return judge(found, f"configured {ASKED_PERCENT} %, observed {percent(hits / answered)}")


def _canary(scene: Scene, tally: Tally) -> int:
    return sum(
        count for name, count in tally.by_replica.items() if scene.variant_of(name) == CANARY
    )


def _share(scene: Scene, tally: Tally) -> str | None:
    return percent(_canary(scene, tally) / tally.answered) if tally.answered else None
