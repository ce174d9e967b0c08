"""Phase: the same conversations under ``round-robin`` and under ``auto``, the default policy."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidegate.demo.conversations import Shape, conversations, interleaved
from tidegate.demo.counters import reuse
from tidegate.demo.load import Tally
from tidegate.demo.report import PhaseFinding, judge, milliseconds, percent
from tidegate.demo.scene import LLM_POOL
from tidegate.demo.stats import percentile

if TYPE_CHECKING:
    from tidegate.demo.conversations import Conversation
    from tidegate.demo.report import DemoVerdict
    from tidegate.demo.scene import Scene

TITLE: Final = "conversations reach the replica that caches them"
ROUND_ROBIN: Final = "round-robin"
AUTO: Final = "auto"
CACHE_BLOCKS: Final = 512
"""Cache of a replica, blocks of 64 characters: 32k characters."""
SESSIONS_PER_REPLICA: Final = 6
"""With the lengths below, one replica's share of the histories (28k characters and the answers)
just fits its cache, while the histories of all sessions do not."""
TURNS: Final = 6
SYSTEM_CHARS: Final = 800
TURN_CHARS: Final = 800
TOKENS: Final = 4
WORKERS_PER_REPLICA: Final = 3
REQUESTS_PER_ROUND: Final = 1000
"""Number of `--requests` per round of new conversations."""


@dataclass(slots=True)
class AffinityRun:
    """Measurements of one policy."""

    policy: str
    reused: float | None = None
    """Fraction of prompt tokens found in a cache."""
    prompt_tokens: int = 0
    ttft: list[float] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)


async def run(scene: Scene) -> PhaseFinding:
    """Run the same conversations under both policies, each with cold caches."""
    shape = Shape(SESSIONS_PER_REPLICA * len(scene.stable), TURNS, SYSTEM_CHARS, TURN_CHARS)
    rounds = max(1, scene.requests // REQUESTS_PER_ROUND)
    found = []
    for policy in (ROUND_ROBIN, AUTO):
        await scene.operator.set_policy(LLM_POOL, policy)
        found.append(await _converse(scene, policy, shape, rounds))
    return PhaseFinding(
        TITLE,
        ("policy", "#requests", "#prompt tokens", "#from cache", "#TTFT p50", "#TTFT p99"),
        tuple(
            (
                one.policy,
                len(one.ttft),
                one.prompt_tokens,
                percent(one.reused),
                milliseconds(percentile(one.ttft, 50)),
                milliseconds(percentile(one.ttft, 99)),
            )
            for one in found
        ),
        assess(*found),
        note=(
            f"{shape.sessions} sessions x {shape.turns} turns on the {len(scene.stable)} stable "
            f"replicas (the canary has weight 0), {rounds} round(s) per policy; all histories "
            f"are {shape.final_chars // 1000}k characters, one cache holds "
            f"{CACHE_BLOCKS * 64 // 1000}k; each policy starts with texts that are in no cache; "
            "the replicas count reused tokens"
        ),
    )


def assess(plain: AffinityRun, auto: AffinityRun) -> DemoVerdict:
    """Pass iff ``auto`` reuses more prompt tokens *and* has a lower median TTFT."""
    problems = [*plain.tally.problems(), *auto.tally.problems()]
    if plain.reused is None or auto.reused is None:
        problems.append("the replicas counted no prompt tokens")
    elif auto.reused <= plain.reused:
        problems.append(f"auto reused {percent(auto.reused)}, not more than round robin")
    before, now = percentile(plain.ttft, 50), percentile(auto.ttft, 50)
    if before is None or now is None:
        problems.append("no stream was answered")
    elif now >= before:
        problems.append(f"median time to first token {milliseconds(now)}, not below round robin's")
    return judge(
        problems,
        f"{percent(auto.reused)} of prompt tokens came from a cache instead of "
        f"{percent(plain.reused)}; median time to first token {milliseconds(now)} instead of "
        f"{milliseconds(before)}",
    )


async def _converse(scene: Scene, policy: str, shape: Shape, rounds: int) -> AffinityRun:
    result = AffinityRun(policy)
    before = await scene.counts()
    for number in range(rounds):
        # A separate seed per policy: the same shape, but texts that are in no cache.
        await _round(scene, result, shape, f"{policy}-{number}")
    after = await scene.counts()
    grown = [after[name].since(before[name]) for name in after]
    result.reused = reuse(grown)
    result.prompt_tokens = sum(one.prompt_tokens for one in grown)
    return result


async def _round(scene: Scene, result: AffinityRun, shape: Shape, seed: str) -> None:
    sessions = conversations(shape, seed)
    locks = [asyncio.Lock() for _ in sessions]
    order = interleaved(shape, seed)

    async def work() -> None:
        # All workers take turns from one iterator, so the order does not depend on response
        # times; a turn waits for the previous turn of its session, which another worker may run.
        for _, number in order:
            async with locks[number]:
                await _turn(scene, result, sessions[number])

    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS_PER_REPLICA * len(scene.stable)):
            group.create_task(work())


async def _turn(scene: Scene, result: AffinityRun, session: Conversation) -> None:
    prompt = session.ask()
    try:
        answer = await scene.clients.generate_stream(prompt, TOKENS, session.session)
    except Exception as error:  # noqa: BLE001 - a failed turn counts in the result
        result.tally.fail(error)
        session.answered("(no answer)")
        return
    session.answered(answer.text)
    result.tally.by_replica[answer.replica] += 1
    result.ttft.append(answer.ttft_s)
