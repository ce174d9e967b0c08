"""Phase: a replica is killed under stateless traffic; no request fails."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tidegate.demo.phases.losses import stateless_traffic
from tidegate.demo.report import PhaseFinding, judge

if TYPE_CHECKING:
    from collections import Counter

    from tidegate.demo.report import DemoVerdict
    from tidegate.demo.scene import Scene

TITLE: Final = "the loss of a replica fails no request"
SHARE: Final = 5
"""A step of the phase has `--requests` / SHARE requests."""


async def run(scene: Scene) -> PhaseFinding:
    """Kill the first stable replica, continue without it, restart it."""
    victim = scene.stable[0].name
    step = max(1, scene.requests // SHARE)
    async with stateless_traffic(scene) as traffic:
        await traffic.progress(step)
        at_kill = traffic.tally.by_replica.copy()
        await scene.stack.kill_replica(victim)
        await traffic.progress(step)
        at_restart = traffic.tally.by_replica.copy()
        start = time.perf_counter()
        await scene.stack.restart_replica(victim)
        ready_s = time.perf_counter() - start
        await traffic.served(victim, at_restart[victim] + 1)
        used_s = time.perf_counter() - start
        await traffic.progress(step)
    at_end = traffic.tally.by_replica
    spans = (at_kill, at_restart - at_kill, at_end - at_restart)
    return PhaseFinding(
        TITLE,
        ("replica", "variant", "#before", "#while it is dead", "#after its start"),
        tuple(
            (one.name, one.variant, *(span[one.name] for span in spans)) for one in scene.replicas
        ),
        assess(victim, at_kill, traffic.tally.failed, traffic.tally.problems()),
        note=(
            f"{victim} was killed under traffic; {traffic.tally.asked} requests in total, "
            f"{traffic.tally.failed} failed; ready {ready_s:.1f} s after its start, "
            f"its first answer {(used_s - ready_s) * 1000:.0f} ms later"
        ),
    )


def assess(victim: str, before: Counter[str], failed: int, problems: list[str]) -> DemoVerdict:
    """Pass iff the replica was in use before the kill and no request failed."""
    found = list(problems)
    if not before[victim]:
        found.append(f"{victim} had served nothing before it was killed")
    return judge(found, f"{failed} requests failed when {victim} was killed; it is back")
